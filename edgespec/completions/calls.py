"""Calls of tools that were read from a text, and the values that they are made of."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from edgespec.grammar.schemas import pointed_to

Parameters = Mapping[str, Any] | None
"""JSON schema of a tool's arguments; None if it is unknown."""
_HEAD = re.compile(r'[^{"]*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
"""A call up to its arguments, behind the marks that open it; definitions have `parameters`."""
_MAY_BE_NULL = re.compile(
    r"(?:,\s*|(?<=\{)\s*)"
    r'(?:"(?:[^"\\]|\\.)*(?:\\|"\s*(?::\s*(?:n(?:u(?:ll?)?)?\s*)?)?)?)?\Z'
)
"""An argument at the end of a text that is null, or may become it as the text goes on."""
_PYTHON_ESCAPE = re.compile(r"(\\[\\'\"abfnrtvxNuU0-7\n])|\\")
"""An escape, or a backslash that begins none, about which Python's parser would warn."""
_ESCAPE = re.compile(r"""(\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))|\\(')|\\""")
"""An escape of JSON, a quote that needs none, or a backslash that begins no escape."""
_OPEN_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[\da-fA-F]{0,3})?\Z")
"""An escape at the end of a text that may go on."""
_SLIP = re.compile(r"""[\0-\x1f]|\\[^"\\/bfnrt]|\b(?:True|False|None)\b""")
_PARTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|\b(?:True|False|None)\b', re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_PLAIN = re.compile(r"""(?:[^"'TFN]+|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z))*""", re.DOTALL)
"""JSON up to a quote or a constant that it does not have."""
_CONTROL, _STRING = re.compile(r"[\0-\x1f]"), re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
"""Characters that JSON escapes in strings, and a string, which may lack its end."""
_LONGEST_MARK = 20
"""Characters at the end of a text in which a mark behind a call may begin."""
_KINDS: tuple[tuple[type, str], ...] = (
    *((type(None), "null"), (bool, "boolean"), (int, "integer"), (float, "number")),
    *((str, "string"), (list, "array"), (dict, "object")),
)
_LONGEST_WORD = 9
"""Most characters of a word, a number's sign or an escape that the end of a text cuts in two."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Name of the called function, and its arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Calls read at a place of a text; a list has several."""

    calls: Sequence[ToolCall]
    end: int
    """Index of the text behind them."""
    end_marks: Sequence[str] = ()
    """Marks to expect there, as others in front of the calls were opened."""


def begun_call(
    text: str, optional: Mapping[str, Collection[str]], is_last: bool = False
) -> ToolCall | None:
    """The JSON call that `text` begins, with its arguments as far as they are certain, as they are
    written; None if it calls none of the functions whose `optional` arguments are given.

    Line breaks in strings are escaped, and optional arguments that are null are left out.
    """
    head = _HEAD.match(text)
    name = json_at(f'"{head[1]}"', 0, is_last=True) if head else None
    if not head or not name or name[0] not in optional:
        return None
    found = json_at(text, head.end(), is_last=True)
    told = text[head.end() : found[1] if found else len(text)]
    if not found:  # brackets and marks at its end may belong to the call
        mark = told.rfind("<", max(0, len(told) - _LONGEST_MARK))
        told = told[: mark if mark >= 0 else None].rstrip("}],` \t\r\n")
    if not found:
        told = _OPEN_ESCAPE.sub(r"\1", told)
    told = _mended(told)
    if not (found or is_last) and (plain := _PLAIN.match(told)):
        told = told[: plain.end()]
    names = "|".join(re.escape(json.dumps(one)) for one in optional[name[0]])
    if names and "null" in told:
        null = rf"(?:{names})\s*:\s*null\s*"
        told = re.sub(
            rf",\s*{null}(?=[,}}])|(?<={{)(?:\s*{null}(?:,|(?=}})))+\s*",
            lambda one: "" if _depth(told[: one.start()]) == 1 else one[0],
            told,
        )
    at = max(told.rfind(","), told.rfind("{") + 1)
    if names and not found and _MAY_BE_NULL.match(told, at):
        told = told[:at]
    return ToolCall(name[0], told)


def _mended(text: str) -> str:
    """JSON with control characters, backslashes and Python's constants as JSON has them."""

    def mended(part: re.Match[str]) -> str:
        if part[0] in _CONSTANTS:
            return _CONSTANTS[part[0]]
        its = _CONTROL.sub(lambda one: json.dumps(one[0])[1:-1], part[0])
        return _ESCAPE.sub(lambda one: one[1] or one[2] or r"\\", its)

    return _PARTS.sub(mended, text) if _SLIP.search(text) else text


def _depth(text: str) -> int:
    """Number of brackets that are open at the end of a text."""
    brackets = _STRING.sub("", text)
    return sum(brackets.count(one) for one in "{[") - sum(brackets.count(one) for one in "}]")


def written(arguments: Any) -> str:
    """The arguments as JSON text that is valid Unicode."""
    # half a surrogate pair, which a model escaped, stays an escape
    text = json.dumps(arguments, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


class UnfinishedCall(Exception):
    """A text ends before it is known whether it is a call."""


def no_call(is_certain: bool) -> Reading | None:
    """None for what is certainly no call; otherwise raises UnfinishedCall."""
    if not is_certain:
        raise UnfinishedCall
    return None


def json_at(text: str, at: int, is_last: bool) -> tuple[Any, int] | None:
    """The JSON value at `at` and the index behind it; None if there is none.

    Raises UnfinishedCall if the text may go on with it, unless it `is_last`.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text) - _LONGEST_WORD or error.msg.startswith("Unterminated")
        no_call(is_last or not is_cut)
        return None
    except (ValueError, RecursionError):
        return None


def completed(arguments: str) -> str | None:
    """The JSON with the brackets that it lacks at its end; None if that is not what it lacks."""
    for ending in ("", "}", "]}"):
        with suppress(ValueError, RecursionError):
            json.loads(arguments + ending, parse_constant=no_number)
            return arguments + ending
    return None


def lenient(text: str, may_lack_brackets: bool = True) -> Any:
    """The value of JSON without its last brackets, or of Python's notation. Raises ValueError."""
    for ending in ("", "}", "}}", "]", "]}") if may_lack_brackets else ("",):
        with suppress(ValueError, RecursionError):
            return _DECODER.decode(_mended(text.strip()) + ending)
    try:
        return python_value(ast.parse(python_source(text.strip()), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("no JSON, nor Python") from error


def typed_value(text: str, name: str, parameters: Parameters) -> Any:
    """The value that plain text is for the parameter `name`: text where a string is expected.

    Without a schema, and where it allows strings and others, text that is JSON for something else
    is that.
    """
    properties = (parameters or {}).get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = _types_of(schema, parameters or {}) or {"string", *(kind for _, kind in _KINDS)}
    try:
        if kinds == {"string"}:
            return text
        if "string" not in kinds:
            return lenient(text)
        value = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) or _kind(value) not in kinds else value


def _types_of(schema: Any, root: Mapping[str, Any], seen: set[int] | None = None) -> set[str]:
    """JSON types that a schema allows; empty if it does not say, or refers to one that was `seen`
    before."""
    seen = set() if seen is None else seen
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return set()
    seen.add(id(schema))
    if "$ref" in schema:
        return _types_of(pointed_to(root, schema["$ref"]), root, seen)
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return {one for one in ([kind] if isinstance(kind, str) else kind) if isinstance(one, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        return {_kind(value) for value in schema.get("enum") or [schema.get("const")]}
    several = schema.get("anyOf", schema.get("oneOf"))
    found = [_types_of(one, root, seen) for one in several] if isinstance(several, list) else []
    return set().union(*found) if all(found) else set()


def _kind(value: Any) -> str:
    return next(kind for of, kind in _KINDS if isinstance(value, of))


def python_source(text: str) -> str:
    """The text with backslashes doubled that begin no escape."""
    return _PYTHON_ESCAPE.sub(lambda one: one[1] or r"\\", text)


def python_value(node: ast.expr) -> Any:
    """The value of a literal that JSON can have, with JSON's constants. Raises ValueError."""
    value = ast.literal_eval(_Constants().visit(node))
    json.dumps(value, allow_nan=False)  # raises TypeError for sets and bytes
    return value


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        names = {"true": True, "false": False, "null": None}
        return ast.Constant(names[node.id]) if node.id in names else node


def no_number(name: str) -> NoReturn:
    """Raise ValueError for a constant such as NaN, which Python reads and JSON lacks."""
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=no_number)
