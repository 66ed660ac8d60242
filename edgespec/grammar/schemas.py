"""Rewrites JSON schemas so that llguidance reads them as their authors mean them.

Objects with `properties` and nothing said about others are closed, as in OpenAI's strict mode; what
is an annotation for llguidance is taken out and named. Knows no tokens.
"""

from __future__ import annotations

import math
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
_NUMBERS = (
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties"),
)
_FORMS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (dict,)),
    **dict.fromkeys((*_LISTS, "enum", "required"), (list,)),
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float, bool)),
    "type": (str, list),
    "$ref": (str,),
}
"""Types of the values of keywords that are looked at here."""
_NAMES = ("type", "required")
"""Keywords whose lists have strings."""
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

Exhausts = Callable[[str, list[str]], bool]
"""True if a pattern matches none but the given names."""


def unchecked_parts(schema: Any) -> tuple[str, ...]:
    """Formats, patterns and keywords in a schema that are not enforced, in alphabetical order."""
    found: set[str] = set()
    for node in _nodes(schema):
        if isinstance(node.get("format"), str) and node["format"] not in CHECKED_FORMATS:
            found.add(node["format"])
        if _LOOK_AROUND.search(str(node.get("pattern", ""))):
            found.add(node["pattern"])
        if node.get("uniqueItems") is True and _unique_lists(node) is None:
            found.add("uniqueItems")
        if "propertyNames" in node and _named_properties(node) is None:
            found.add("propertyNames")
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


def _unique_lists(node: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Schemas of the lists without repetition of a few values; None if there are too many."""
    items = node.get("items")
    values = items.get("enum") if isinstance(items, Mapping) else None
    if not isinstance(values, list) or len(values) > MAX_UNIQUE:
        return None
    least, most = node.get("minItems", 0), min(node.get("maxItems", len(values)), len(values))
    return [
        {"type": "array", "prefixItems": [{"const": one} for one in chosen], "items": False}
        | {"minItems": length, "maxItems": length}
        for length in range(least, most + 1)
        for chosen in permutations(values, length)
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


def has_large_integers(schema: Any) -> bool:
    """True if a schema has a constant or a bound beyond 2^53."""
    return any(
        _exact(node[keyword]) != node[keyword]
        for node in _nodes(schema)
        for keyword in node.keys() & {*_BOUNDS, "const", "enum"}
    )


def rewritten(schema: Any, exhausts: Exhausts) -> Any:
    """A copy of the schema for llguidance. Raises GrammarError for a keyword that has a value of a
    wrong type."""
    for node in _nodes(schema):
        for keyword in node.keys() & _FORMS.keys():
            if not _is_formed(keyword, node[keyword]):
                said = repr(node[keyword])[:40]
                raise GrammarError(f"the json schema is wrong: {keyword} must not be {said}")
    schema = without_annotations(schema)
    return _Rewriter(schema, exhausts).rewritten(schema)


def _is_formed(keyword: str, value: Any) -> bool:
    """True if a keyword's value has one of its types."""
    if isinstance(value, bool):
        return bool in _FORMS[keyword]
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if keyword in _NAMES and isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    return isinstance(value, _FORMS[keyword])


class _Rewriter:
    def __init__(self, root: Any, exhausts: Exhausts) -> None:
        self._root = root
        self._exhausts = exhausts
        self._composed: set[int] = set()
        """Identities of schemas that describe an object together with others, and stay open."""
        self._nameless: set[int] = set()
        """Identities of schemas that name no properties, nor do those that they apply."""
        for node in _nodes(root):
            self._find_composed(node)

    def rewritten(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = _mapped(node, self.rewritten)
        if isinstance(node.get("format"), str) and node["format"] not in CHECKED_FORMATS:
            del copy["format"]
        if isinstance(pattern := node.get("pattern"), str):
            copy["pattern"] = _without_look_around(pattern)
        if copy.pop("uniqueItems", False) is True and (lists := _unique_lists(node)) is not None:
            copy = {"anyOf": lists}
        if copy.pop("propertyNames", None) is not None:
            copy |= _mapped(_named_properties(node) or {}, self.rewritten)
        for bound in copy.keys() & {*_BOUNDS}:
            if _exact(copy[bound]) != copy[bound]:
                del copy[bound]
        for keyword in copy.keys() & {"const", "enum"}:
            if (exact := _exact(copy[keyword])) != copy[keyword]:
                copy[keyword] = exact
                copy.pop("type", None)
        if self._is_closed(node):
            copy["additionalProperties"] = False
        if isinstance(node.get("patternProperties"), dict):
            self._drop_exhausted(copy)
        return copy

    def _is_closed(self, node: dict[str, Any]) -> bool:
        properties, required = node.get("properties"), node.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return False
        return (
            not _OPENING & node.keys()
            and id(node) not in self._composed
            and all(name in properties for name in required)
            and node.get("minProperties", 0) <= len(properties)
        )

    def _drop_exhausted(self, node: dict[str, Any]) -> None:
        """Remove patterns that match named properties only, after which no name is left.

        llguidance would begin a further property and find no name for it.
        """
        required = node.get("required", [])
        names = [*node.get("properties", {}), *(required if isinstance(required, list) else ())]
        for pattern, schema in list(node["patternProperties"].items()):
            if names and self._exhausts(pattern, names):
                properties = node.setdefault("properties", {})
                for name in names:
                    others = [other for other in names if other != name]
                    if not self._exhausts(pattern, others):
                        properties[name] = {"allOf": [properties.get(name, True), schema]}
                del node["patternProperties"][pattern]

    def _find_composed(self, node: dict[str, Any]) -> None:
        """Mark what describes one object together, if more than one part names properties."""
        groups = [[node]] if "properties" in node else []
        groups += [[part] for part in _list(node, "allOf")]
        groups += [_list(node, "anyOf"), _list(node, "oneOf"), self._target(node)]
        naming = [group for group in groups if any(map(self._names_properties, group))]
        if len(naming) > 1:
            for group in naming:
                for part in group:
                    self._mark(part)

    def _mark(self, node: Any) -> None:
        waiting = [node]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict) and id(part) not in self._composed:
                self._composed.add(id(part))
                waiting += self._parts(part)

    def _names_properties(self, node: Any) -> bool:
        waiting, seen = [node], set[int]()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in seen or id(part) in self._nameless:
                continue
            if "properties" in part:
                return True
            seen.add(id(part))
            waiting += self._parts(part)
        self._nameless |= seen
        return False

    def _parts(self, node: dict[str, Any]) -> list[Any]:
        """Schemas that apply to the same value as `node`."""
        applied = [part for keyword in ("allOf", "anyOf", "oneOf") for part in _list(node, keyword)]
        return [*applied, *self._target(node)]

    def _target(self, node: dict[str, Any]) -> list[Any]:
        """The schema that `$ref` points to, if it is in this document."""
        found = pointed_to(self._root, node.get("$ref"))
        return [] if found is None else [found]


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
            waiting += subschemas(node)


def subschemas(node: Mapping[str, Any]) -> list[Any]:
    """The schemas directly in a schema."""
    found: list[Any] = []
    _mapped(node, found.append)
    return found


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


def _list(node: Mapping[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []
