"""Converts arguments that models write as plain text, between marks, to JSON by their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.completions.calls import lenient, no_number

Schema = Mapping[str, Any]
_PYTHON = {"True": True, "False": False, "None": None}
_MAX_REFERENCES = 20


def written(arguments: Any) -> str:
    """The arguments as JSON text that is valid Unicode."""
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a model escaped
        return json.dumps(arguments)
    return text


def typed_value(text: str, name: str, parameters: Schema | None) -> Any:
    """The value that `text` is for the parameter `name`: text itself where a string is expected.

    Without a schema, and where it allows strings and others, text that is JSON for something else
    is that.
    """
    properties = (parameters or {}).get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = types_of(schema, parameters or {})
    if kinds == {"string"}:
        return text
    if text.strip() in _PYTHON:
        value = _PYTHON[text.strip()]
    else:
        try:
            value = json.loads(text, parse_constant=no_number)
        except (ValueError, RecursionError):
            if not kinds or kinds & {"string"}:
                return text
            try:
                value = lenient(text)
            except ValueError:
                return text
    if kinds and "string" in kinds and _kind(value) not in kinds:
        return text
    return text if isinstance(value, str) and "string" in (kinds or {"string"}) else value


def types_of(schema: Any, root: Schema) -> set[str]:
    """JSON types that a schema allows; empty if it does not say."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {one for one in kind if isinstance(one, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        return {_kind(value) for value in schema.get("enum") or [schema.get("const")]}
    for several in ("anyOf", "oneOf"):
        if isinstance(schema.get(several), list):
            kinds = [types_of(one, root) for one in schema[several]]
            return set().union(*kinds) if all(kinds) else set()
    return set()


def followed(schema: Any, root: Schema) -> Any:
    """The schema that a reference such as `#/$defs/City` names; None if there is none."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference is None:
            return schema
        schema = root if str(reference).startswith("#") else None
        for part in str(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return None


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
