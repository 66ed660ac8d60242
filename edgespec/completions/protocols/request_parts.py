"""The base of objects in requests: null is a field left out, and numbers are numbers.

Servers leave unknown fields out and name them; elsewhere they are refused. Errors are sentences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from edgespec.errors import ContextOverflow, UsageError
from edgespec.settings.base import nearest

NEAR = 0.8
"""Least similarity of a misspelled field to a known one."""
NO_SLIPS = frozenset({"add_special_tokens", "max_tool_calls", "speed"})
"""Fields of other servers that look like misspelled ones of ours."""
_UNTOLD = ("type", "id", "call_id", "tool_use_id", "status")
"""Fields of items that are not told to the model."""
_LEFT_OUT: ContextVar[list[str] | None] = ContextVar("left_out", default=None)


class RequestError(UsageError):
    """A field of a request is invalid."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """`figures` are further fields of the error in a response."""
        super().__init__(message)
        self.param = param
        self.code = code
        self.figures = dict(figures or {})


@contextmanager
def about(param: str) -> Iterator[None]:
    """Name the field of the request in an error about a prompt that is too long."""
    try:
        yield
    except ContextOverflow as error:
        error.param = param
        raise


@contextmanager
def reading(where: str, param: str) -> Iterator[None]:
    """Context manager that names the place of what is not as a protocol has it. Raises
    RequestError."""
    try:
        yield
    except RequestError:
        raise
    except KeyError as error:
        raise RequestError(f"{where}.{error.args[0]} is missing", param) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: {error}", param) from error
    except (TypeError, AttributeError) as error:
        raise RequestError(f"{where} has a value of a wrong type", param) from error


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

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

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
            is_slip = name not in NO_SLIPS and get_close_matches(str(name), known, 1, NEAR)
            if not is_slip and leave_out(str(name)):
                del fields[name]
        return fields


class ParsedRequest(RequestPart):
    """A request as a whole."""

    @classmethod
    def parse(cls, content: object) -> Self:
        """The request in decoded JSON. Raises RequestError."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise RequestError(*_told(error, content, cls.known_fields())) from error


def _told(
    error: ValidationError, content: object, known_fields: Sequence[str]
) -> tuple[str, str | None]:
    """The deepest of pydantic's errors as a sentence that names the field, and the field."""
    places = [(_place(details, content), details) for details in error.errors()]
    path, details = max(places, key=lambda found: len(found[0]))
    param = ".".join(path) or None
    kind, reason = details["type"], details["msg"]
    if kind == "extra_forbidden":
        hint = nearest(str(param), known_fields) if len(details["loc"]) == 1 else ""
        return f"unknown field {param!r}{hint}", param
    if kind == "missing":
        return f"{param} is missing", param
    if param is None:
        return "the request must be a JSON object", None
    return f"{param}: {reason}", param


def _place(details: ErrorDetails, content: object) -> list[str]:
    """Path of an error in the request, without pydantic's own steps such as names of types."""
    path, value, steps = list[str](), content, [*map(str, details["loc"])]
    for place, step in enumerate(steps):
        items = dict(enumerate(value)) if isinstance(value, list) else value
        found = {str(k): its for k, its in items.items()} if isinstance(items, Mapping) else {}
        is_missing = details["type"] == "missing" and place == len(steps) - 1
        if step in found or is_missing or (place == 0 and isinstance(value, Mapping)):
            path.append(step)
            value = found.get(step, value)
    return path


def told(item: Mapping[str, Any]) -> str:
    """The text for a call of a tool that only other servers have, or for what it returned."""
    fields = {name: v for name, v in item.items() if name not in _UNTOLD and v is not None}
    text, secret = json.dumps(fields), "encrypted_content"
    plain = json.loads(text, object_hook=lambda at: {k: at[k] for k in at if k != secret})
    return f"[{item['type']}] {json.dumps(plain, ensure_ascii=False)}"


def string(value: Any) -> str:
    """The value, which must be text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} must be text")
    return value


def call_of(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's format. Raises ValueError."""
    function = {"name": string(name), "arguments": string(arguments)}
    return {"id": string(identity), "type": "function", "function": function}
