"""Rewrites JSON schemas so that llguidance reads them as their authors mean them.

Objects with `properties` and nothing said about others are closed, as in OpenAI's strict mode; what
is an annotation for llguidance is taken out and named. Knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any
from urllib.parse import unquote

from edgespec.errors import GrammarError

CHECKED_FORMATS = frozenset(
    {"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""Formats of strings that llguidance enforces; it refuses all others."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLES = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)
_OPENING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
"""Keywords by which an object says what it thinks of further properties."""

_ANNOTATIONS = frozenset(
    {"description", "title", "examples", "default", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id"}
)
_LOOK_AROUND = re.compile(r"(?<!\\)\(\?<?[=!]")
MAX_UNIQUE = 4
"""Most values of a list without repetition that is written out."""
EXACT = 1 << 53
"""Integers up to this one are exact as binary64, which llguidance and JavaScript compute with."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

_LITERALS = re.compile(r"\^\(?\w+(?:\$?\|\^?\w+)*\)?\$")
"""A pattern that matches a few names and no others."""


def unchecked_parts(schema: Any) -> tuple[str, ...]:
    """Formats, patterns and keywords in a schema that are not enforced, in alphabetical order.

    Constants beyond 2^53 are written as strings, and bounds beyond it are not enforced.
    """
    found: set[str] = set()
    for node in _nodes(schema):
        if isinstance(node.get("format"), str) and node["format"] not in CHECKED_FORMATS:
            found.add(node["format"])
        if _LOOK_AROUND.search(str(node.get("pattern", ""))):
            found.add(node["pattern"])
        if node.get("uniqueItems") is True and not _unique_lists(node):
            found.add("uniqueItems")
        if "propertyNames" in node and _named_properties(node) is None:
            found.add("propertyNames")
        large = (node[name] for name in node.keys() & {*_BOUNDS, "const", "enum"})
        if any(_exact(value) != value for value in large):
            found.add("integers beyond 2^53")
    return tuple(sorted(found))


def without_annotations(schema: Any) -> Any:
    """The schema without descriptions and what else says nothing about values."""
    if not isinstance(schema, dict):
        return schema
    bare = _mapped(schema, without_annotations)
    return {name: value for name, value in bare.items() if name not in _ANNOTATIONS}


def _without_look_around(pattern: str) -> str:
    """The pattern without what the library cannot have, so that it fits more."""
    while found := _LOOK_AROUND.search(pattern):
        depth, end = 0, len(pattern)
        for bracket in re.finditer(
            r"\\.|\[(?:\\.|[^\]])*\]|[()]", pattern[found.start() :], re.DOTALL
        ):
            depth += (bracket[0] == "(") - (bracket[0] == ")")
            if depth == 0 and bracket[0] == ")":
                end = found.start() + bracket.end()
                break
        pattern = pattern[: found.start()] + pattern[end:]
    return pattern


def _unique_lists(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Schemas of the lists without repetition of a few values; none if there are too many."""
    items = node.get("items")
    values = items.get("enum", ()) if isinstance(items, Mapping) else ()
    if len(values) > MAX_UNIQUE:
        return []
    least, most = node.get("minItems", 0), min(node.get("maxItems", len(values)), len(values))
    return [
        {"type": "array", "prefixItems": [{"const": one} for one in chosen], "items": False}
        | {"minItems": length, "maxItems": length}
        for length in range(least, most + 1)
        for chosen in permutations(values, length)
        if values
    ]


def _named_properties(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Keywords that stand for `propertyNames`; None if there are none."""
    names, value = node["propertyNames"], node.get("additionalProperties", True)
    if not isinstance(names, Mapping):
        return {} if names is True else None
    said = names.keys() - {*_ANNOTATIONS, "type"}
    if not said and names.get("type", "string") == "string":
        return {}
    if said == {"enum"} and all(isinstance(name, str) for name in names["enum"]):
        own = node.get("properties", {})
        properties = {name: own.get(name, value) for name in names["enum"]}
        return {"properties": properties, "additionalProperties": False}
    if said == {"pattern"} and "properties" not in node:
        return {"patternProperties": {names["pattern"]: value}, "additionalProperties": False}
    return None


def rewritten(schema: Any) -> Any:
    """A copy of the schema for llguidance. Raises GrammarError for a keyword that has a value of a
    wrong type."""
    try:
        schema = without_annotations(schema)
        return _rewritten(schema, _composed(schema))
    except (TypeError, AttributeError, KeyError) as error:
        raise GrammarError(f"the json schema is wrong: {error}") from error


def _rewritten(node: Any, composed: set[int]) -> Any:
    if not isinstance(node, dict):
        return node
    copy = _mapped(node, lambda part: _rewritten(part, composed))
    if isinstance(node.get("format"), str) and node["format"] not in CHECKED_FORMATS:
        del copy["format"]
    if isinstance(pattern := node.get("pattern"), str):
        copy["pattern"] = _without_look_around(pattern)
    if copy.pop("uniqueItems", False) is True and (lists := _unique_lists(node)):
        copy = {"anyOf": lists}
    if copy.pop("propertyNames", None) is not None:
        named = _named_properties(node) or {}
        copy |= _mapped(named, lambda part: _rewritten(part, composed))
    for bound in copy.keys() & {*_BOUNDS}:
        if isinstance(copy[bound], int) and _exact(copy[bound]) != copy[bound]:
            del copy[bound]
    for keyword in copy.keys() & {"const", "enum"}:
        if (exact := _exact(copy[keyword])) != copy[keyword]:
            copy[keyword] = exact
            copy.pop("type", None)
    if _is_closed(node) and id(node) not in composed:
        copy["additionalProperties"] = False
    for pattern in [one for one in copy.get("patternProperties", ()) if _LITERALS.fullmatch(one)]:
        # llguidance would begin a further property and find no name for it
        its, properties = copy["patternProperties"].pop(pattern), copy.setdefault("properties", {})
        for name in re.findall(r"\w+", pattern):
            properties[name] = {"allOf": [properties.get(name, True), its]}
    return copy


def _is_closed(node: dict[str, Any]) -> bool:
    """True for an object with properties that says nothing about others."""
    properties, required = node.get("properties"), node.get("required", [])
    return (
        isinstance(properties, dict)
        and not _OPENING & node.keys()
        and all(name in properties for name in required)
        and node.get("minProperties", 0) <= len(properties)
    )


def _composed(root: Any) -> set[int]:
    """Identities of schemas that describe an object together with others, and stay open."""
    composed: set[int] = set()
    for node in _nodes(root):
        n_others = len(node.get("allOf", ())) + sum(name in node for name in ("anyOf", "oneOf"))
        if n_others + ("$ref" in node) + ("properties" in node) < 2:
            continue
        waiting: list[Any] = [node]  # and all schemas that apply to the same value
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict) and id(part) not in composed:
                composed.add(id(part))
                waiting += [*part.get("allOf", ()), *part.get("anyOf", ()), *part.get("oneOf", ())]
                waiting.append(pointed_to(root, part.get("$ref")))
    return composed


def _exact(value: Any) -> Any:
    """The value with integers beyond 2^53 as strings of their digits, as protobuf's JSON has it."""
    match value:
        case bool():
            return value
        case int():
            return str(value) if abs(value) > EXACT else value
        case list():
            return [_exact(one) for one in value]
        case dict():
            return {name: _exact(one) for name, one in value.items()}
    return value


def pointed_to(root: Any, reference: Any) -> Any:
    """The part of a document that a reference such as `#/$defs/City` names; None if there is
    none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in reference[1:].split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas in it, without those that are values of `const` or `default`."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            _mapped(node, waiting.append)


def _mapped(node: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of the schema with `change` applied to the schemas directly in it."""
    copy = dict(node)
    for keyword in node.keys() & {*_MAPS, *_LISTS, *_SINGLES}:
        value = node[keyword]
        if isinstance(value, list):  # `items` of older drafts may be a list
            copy[keyword] = [change(part) for part in value]
        elif keyword in _MAPS and isinstance(value, dict):
            copy[keyword] = {name: change(part) for name, part in value.items()}
        elif keyword in _SINGLES:
            copy[keyword] = change(value)
    return copy
