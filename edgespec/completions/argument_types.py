"""Converts arguments that models write as plain text, between marks, to JSON by their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.completions.calls import lenient, no_number
from edgespec.grammar.schemas import pointed_to

Schema = Mapping[str, Any]
_KINDS: tuple[tuple[type, str], ...] = (
    *((type(None), "null"), (bool, "boolean"), (int, "integer"), (float, "number")),
    *((str, "string"), (list, "array"), (dict, "object")),
)
_MAX_REFERENCES = 20


def typed_value(text: str, name: str, parameters: Schema | None) -> Any:
    """The value that `text` is for the parameter `name`: text itself where a string is expected.

    Without a schema, and where it allows strings and others, text that is JSON for something else
    is that.
    """
    properties = (parameters or {}).get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = types_of(schema, parameters or {}) or {"string", *(kind for _, kind in _KINDS)}
    try:
        if kinds == {"string"}:
            return text
        value = _json(text, kinds)
    except (ValueError, RecursionError):
        return text
    is_unexpected = "string" in kinds and (isinstance(value, str) or _kind(value) not in kinds)
    return text if is_unexpected else value


def _json(text: str, kinds: set[str]) -> Any:
    try:
        return json.loads(text, parse_constant=no_number)
    except ValueError:
        if "string" in kinds:
            raise
        return lenient(text)


def types_of(schema: Any, root: Schema) -> set[str]:
    """JSON types that a schema allows; empty if it does not say."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return {one for one in ([kind] if isinstance(kind, str) else kind) if isinstance(one, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        return {_kind(value) for value in schema.get("enum") or [schema.get("const")]}
    several = schema.get("anyOf", schema.get("oneOf"))
    found = [types_of(one, root) for one in several] if isinstance(several, list) else []
    return set().union(*found) if all(found) else set()


def followed(schema: Any, root: Schema) -> Any:
    """The schema that a reference such as `#/$defs/City` names; None if there is none."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        schema = pointed_to(root, schema["$ref"])
    return None


def _kind(value: Any) -> str:
    return next(kind for of, kind in _KINDS if isinstance(value, of))
