"""Writes schemas with integers beyond 2^53 as Lark grammars, because llguidance rounds them.

Only the way from the schema's root to such an integer is written out; all other parts remain JSON
schemas. What is written out is limited to keywords that need no intersection of schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.errors import GrammarError
from edgespec.grammar.schemas import pointed_to, subschemas

EXACT = 1 << 53
"""Integers up to this one are exact as binary64, which llguidance computes with."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs", "definitions", "format", "nullable", "x-guidance"}
)
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ANY_NAME = r'/"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/'


def has_large_integers(schema: Any) -> bool:
    """True if llguidance would round an integer of the schema."""
    return _has_large(schema) and _Speller(schema, {}, "").is_large(schema)


def lark_rules(schema: Any, style: Mapping[str, Any], name: str = "start") -> str:
    """Lark rules of which the one called `name` is JSON that fits the schema.

    `style` is the formatting of JSON, in llguidance's terms. Raises GrammarError for keywords
    beside large integers that cannot be written out.
    """
    speller = _Speller(schema, style, name)
    rules = speller.rules | {name: speller.value(schema)}
    return "".join(f"{rule}: {body}\n" for rule, body in rules.items())


class _Speller:
    def __init__(self, root: Any, style: Mapping[str, Any], prefix: str) -> None:
        self._root = root
        self._style = style
        self._prefix = prefix
        self._comma = _quoted(style.get("item_separator", ", "))
        self._colon = style.get("key_separator", ": ")
        self._named: dict[str, str] = {}
        """Names of rules by reference."""
        self.rules: dict[str, str] = {}

    def is_large(self, node: Any) -> bool:
        """True if a schema contains an integer that llguidance would round."""
        waiting, seen = [node], set[int]()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            bounds = any(_has_large(part.get(bound)) for bound in _BOUNDS)
            if bounds and "integer" in _types(part):
                return True
            if _has_large(part.get("const")) or _has_large(part.get("enum")):
                return True
            waiting += subschemas(part)
            waiting.append(self._target(part))
        return False

    def value(self, node: Any) -> str:
        """Lark expression of a value that fits the schema."""
        if not self.is_large(node):
            return self._leaf(node)
        keywords = node.keys() - _ANNOTATIONS
        if "allOf" in keywords:
            _check_alone("allOf", keywords - {"allOf"})
            if len(node["allOf"]) != 1:
                raise GrammarError(_complaint("allOf"))
            return self.value(node["allOf"][0])
        if "$ref" in keywords:
            _check_alone("$ref", keywords - {"$ref"})
            return self._reference(node["$ref"])
        if keywords & {"const", "enum"}:
            _check_alone("const and enum", keywords - {"const", "enum", "type"})
            values = [node["const"]] if "const" in node else node["enum"]
            return self._either([_quoted(self._dumps(v)) for v in values if _is_of(v, node)])
        if "anyOf" in keywords:
            _check_alone("anyOf", keywords - {"anyOf"})
            return self._either([self.value(part) for part in node["anyOf"]])
        if "oneOf" in keywords:
            _check_alone("oneOf", keywords - {"oneOf", "type"})
            if not all(isinstance(part, dict) and "const" in part for part in node["oneOf"]):
                raise GrammarError(_complaint("oneOf of other parts than const"))
            return self._either([self.value(part) for part in node["oneOf"]])
        return self._either([self._typed(node, kind) for kind in _types(node)])

    def _typed(self, node: Mapping[str, Any], kind: str) -> str:
        keywords = node.keys() - _ANNOTATIONS - {"type"}
        match kind:
            case "integer" if keywords & set(_BOUNDS):
                _check_alone("bounds", keywords - set(_BOUNDS))
                return f"/{_range(*_limits(node))}/"
            case "object" if "properties" in node or "additionalProperties" in node:
                known = {"properties", "required", "additionalProperties"}
                _check_alone("properties", keywords - known)
                return self._object(node)
            case "array" if isinstance(node.get("items"), dict | bool):
                _check_alone("items", keywords - {"items", "minItems", "maxItems"})
                return self._array(node)
            case _:
                return self._leaf(dict(node) | {"type": kind})

    def _object(self, node: Mapping[str, Any]) -> str:
        others = node.get("additionalProperties", True)
        properties = dict(node.get("properties", {}))
        required = node.get("required", ())
        properties |= {name: others for name in required if name not in properties}
        entries = [
            (f"{_quoted(json.dumps(name) + self._colon)} {self._rule(part)}", name in required)
            for name, part in properties.items()
        ]
        if others is not False:
            taken = " | ".join(_quoted(json.dumps(name)) for name in properties)
            name = f"{self._prefix.upper()}_NAME{len(self.rules)}"
            self.rules[name] = f"{_ANY_NAME} & ~({taken})" if taken else _ANY_NAME
            entry = f"{name} {_quoted(self._colon)} {self._rule(others)}"
            entries.append((f"{entry} ({self._comma} {entry})*", False))
        first, later = '""', '""'
        """Rules of the remaining entries, with nothing and with something before them."""
        for entry, is_required in reversed(entries):
            with_comma = f"{self._comma} {entry}"
            if is_required:
                first, later = f"{entry} {later}", f"{with_comma} {later}"
            else:
                first = self._new_rule(f"{entry} {later} | {first}")
                later = f"({with_comma})? {later}"
            first, later = self._new_rule(first), self._new_rule(later)
        return f'"{{" {first} "}}"'

    def _array(self, node: Mapping[str, Any]) -> str:
        item, least, most = self._rule(node["items"]), node.get("minItems", 0), node.get("maxItems")
        if most == 0:
            return '"[]"'
        items = item
        if most != 1:
            further = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
            items += f" ({self._comma} {item}){{{further}}}"
        return f'"[" ({items}){"" if least else "?"} "]"'

    def _reference(self, reference: str) -> str:
        if reference not in self._named:
            self._named[reference] = name = f"{self._prefix}_ref{len(self._named)}"
            self.rules[name] = self.value(self._target({"$ref": reference}))
        return self._named[reference]

    def _target(self, node: Mapping[str, Any]) -> Any:
        return pointed_to(self._root, node.get("$ref"))

    def _leaf(self, node: Any) -> str:
        if not isinstance(node, dict):
            node = {} if node else {"not": {}}
        if self.is_large(node):
            raise GrammarError(
                _complaint(f"what {', '.join(sorted(node.keys() - _ANNOTATIONS))} say")
            )
        definitions = {
            key: self._root[key] for key in ("$defs", "definitions") if key in self._root
        }
        return f"%json {json.dumps(definitions | node | {'x-guidance': self._style})}"

    def _either(self, options: Sequence[str]) -> str:
        if not options:
            raise GrammarError("the json schema is wrong: no value of enum or const has its type")
        return options[0] if len(options) == 1 else self._new_rule(" | ".join(options))

    def _rule(self, node: Any) -> str:
        return self._new_rule(self.value(node))

    def _new_rule(self, body: str) -> str:
        name = f"{self._prefix}_part{len(self.rules)}"
        self.rules[name] = body
        return name

    def _dumps(self, value: Any) -> str:
        separators = (self._style.get("item_separator", ", "), self._colon)
        return json.dumps(value, ensure_ascii=False, separators=separators)


def _has_large(value: Any) -> bool:
    match value:
        case bool():
            return False
        case int():
            return abs(value) > EXACT
        case list():
            return any(map(_has_large, value))
        case dict():
            return any(map(_has_large, value.values()))
    return False


def _types(node: Mapping[str, Any]) -> Sequence[str]:
    kinds = node.get("type", _TYPES)
    return [kinds] if isinstance(kinds, str) else kinds


def _is_of(value: Any, node: Mapping[str, Any]) -> bool:
    """True if a constant has one of the schema's types."""
    kinds: dict[type, tuple[str, ...]] = {
        type(None): ("null",),
        bool: ("boolean",),
        int: ("integer", "number"),
        float: ("number",),
        str: ("string",),
        list: ("array",),
        dict: ("object",),
    }
    return any(kind in _types(node) for kind in kinds[type(value)])


def _check_alone(what: str, others: set[str]) -> None:
    if others:
        raise GrammarError(_complaint(f"{what} beside {', '.join(sorted(others))}"))


def _complaint(what: str) -> str:
    return (
        f"the json schema has integers beyond 2^53 in {what}, which cannot be written exactly: "
        "simplify it, or make them strings"
    )


def _limits(node: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Smallest and largest integer; None without a limit."""
    lows, highs = [], []
    if (least := node.get("minimum")) is not None:
        lows.append(math.ceil(least) + (node.get("exclusiveMinimum") is True))
    if (most := node.get("maximum")) is not None:
        highs.append(math.floor(most) - (node.get("exclusiveMaximum") is True))
    if not isinstance(above := node.get("exclusiveMinimum"), bool | None):
        lows.append(math.floor(above) + 1)
    if not isinstance(below := node.get("exclusiveMaximum"), bool | None):
        highs.append(math.ceil(below) - 1)
    return max(lows, default=None), min(highs, default=None)


def _range(low: int | None, high: int | None) -> str:
    """Regular expression of the integers from `low` to `high`."""
    if low is not None and high is not None and low > high:
        raise GrammarError(f"the json schema is wrong: no integer lies from {low} to {high}")
    options = []
    if low is None or low < 0:
        nearest = 1 if high is None else max(1, -high)
        options.append(f"-({_positive(nearest, None if low is None else -low)})")
    if (low is None or low <= 0) and (high is None or high >= 0):
        options.append("0")
    if high is None or high > 0:
        options.append(_positive(1 if low is None else max(1, low), high))
    return "|".join(options)


def _positive(low: int, high: int | None) -> str:
    n_low = len(str(low))
    if high is None:
        return f"{_between(str(low), '9' * n_low)}|[1-9][0-9]{{{n_low},}}"
    options = []
    for n in range(n_low, len(str(high)) + 1):
        first, last = max(low, 10 ** (n - 1)), min(high, 10**n - 1)
        options.append(_between(str(first), str(last)))
    return "|".join(options)


def _between(low: str, high: str) -> str:
    """Regular expression of the numerals from `low` to `high`, which have as many digits."""
    if low == high:
        return low
    n_rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return f"[{low[0]}-{high[0]}]" + (f"[0-9]{{{n_rest}}}" if n_rest else "")
    if low[0] == high[0]:
        return low[0] + _between(low[1:], high[1:])
    options = [low[0] + _between(low[1:], "9" * n_rest)]
    if int(low[0]) + 1 < int(high[0]):
        options.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{n_rest}}}")
    options.append(high[0] + _between("0" * n_rest, high[1:]))
    return f"({'|'.join(options)})"


def _quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)
