"""The base of objects in requests: null is a field left out, all fields of most objects are known,
and numbers are numbers. Errors are sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class TakesNulls(BaseModel):
    """An object in which null stands for a field left out, as clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        names = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: value for k, value in content.items() if value is not None or k not in names}

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


class RequestPart(TakesNulls):
    """An object in a request, all of whose fields are known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
