"""The base of objects in requests: null is a field left out, and numbers are numbers.

Servers leave unknown fields out and name them; elsewhere they are refused. Errors are sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from edgespec.settings.base import nearest

_NULL = {"type": "null"}


NEAR = 0.8
"""Least similarity of a misspelled field to a known one."""
_LEFT_OUT: ContextVar[list[str] | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out(names: list[str]) -> Iterator[None]:
    """Context manager in which unknown fields and tools are left out and added to `names`."""
    token = _LEFT_OUT.set(names)
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def leave_out(name: str) -> bool:
    """Add a name to those that are left out; False if nothing may be."""
    names = _LEFT_OUT.get()
    if names is not None and name not in names:
        names.append(name)
    return names is not None


class RequestPart(BaseModel):
    """An object in a request, in which null stands for a field left out, as clients send it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def known_fields(cls) -> list[str]:
        """Names of fields, of which one is suggested where a field is misspelled."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _leave_out_others(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        fields = {name: value for name, value in content.items() if value is not None}
        known = cls.known_fields()
        for name in fields.keys() - {*known}:
            if not get_close_matches(str(name), known, 1, NEAR) and leave_out(str(name)):
                del fields[name]
        return fields

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON schema, in which all optional fields may be null."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema)
        optional = fields.get("properties", {}).keys() - {*fields.get("required", ())}
        for name in optional:
            its = fields["properties"][name]
            if _NULL not in its.get("anyOf", ()) and its.get("type") != "null":
                fields["properties"][name] = {"anyOf": [its, _NULL]}
        return schema

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and _is_number(
            cls.model_fields[info.field_name or ""].annotation
        ):
            raise PydanticCustomError(
                "bool", "it must be a number, not {value}", {"value": str(value).lower()}
            )
        return value


def _is_number(annotation: object) -> bool:
    """True for the type of a field with numbers, or with numbers or nothing."""
    kinds = {annotation, *get_args(annotation)}
    return not kinds.isdisjoint({int, float}) and bool not in kinds


def told(
    error: ValidationError, content: object, known_fields: Sequence[str]
) -> tuple[str, str | None]:
    """The first of pydantic's errors as a sentence that names the field, and the field.

    Of the errors of a field that may have several types, the one that lies deepest is taken.
    """
    first, *others = [(_place(details, content), details) for details in error.errors()]
    same = [other for other in others if first[0][:1] == other[0][:1] != []]
    path, details = max([first, *same], key=lambda found: len(found[0]))
    param = ".".join(path) if path else None
    kind, reason = details["type"], details["msg"]
    if kind == "extra_forbidden":
        hint = nearest(str(param), known_fields) if len(details["loc"]) == 1 else ""
        return f"unknown field {param!r}{hint}", param
    if kind == "missing":
        return f"{param} is missing", param
    if param is None and not isinstance(content, Mapping):
        return "the request must be a JSON object", None
    if param is None:  # a validator of the whole request, whose message begins with the field
        return reason, reason.partition(":")[0]
    return f"{param}: {_REASONS.get(kind) or _plain(reason)}", param


_REASONS = {
    "none_required": "only null can be had here",
    "model_type": "it must be an object",
    "model_attributes_type": "it must be an object",
    "dict_type": "it must be an object",
    "list_type": "it must be a list",
    "string_type": "it must be text",
}
"""Messages that replace pydantic's, by error type."""


def _plain(reason: str) -> str:
    for pydantics, ours in (("Input should be", "it must be"), ("a valid integer", "an integer")):
        reason = reason.replace(pydantics, ours)
    return reason.replace("a valid ", "a ")


def _place(details: ErrorDetails, content: object) -> list[str]:
    """Path of an error in the request, without pydantic's own steps such as names of types."""
    path, value = [], content
    last = len(details["loc"]) - 1
    for place, step in enumerate(details["loc"]):
        if isinstance(value, Mapping) and (step in value or str(step) in map(str, value)):
            value = next(part for key, part in value.items() if str(key) == str(step))
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif not (place == last and details["type"] == "missing") and not (
            place == 0 and isinstance(step, str) and isinstance(value, Mapping)
        ):
            continue
        path.append(str(step))
    return path
