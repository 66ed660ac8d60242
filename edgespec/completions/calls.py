"""Calls of tools that were read from a text, and the JSON that they are made of."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Self

Parameters = Mapping[str, Any] | None
"""JSON schema of a tool's arguments; None if it is unknown."""
_HEAD = re.compile(r'[^{"]*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
"""A call up to its arguments, behind the marks that open it; definitions have `parameters`."""
_NO_ESCAPE = re.compile(r"\\(?![\\'\"abfnrtvxNuU0-7\n])")
"""A backslash that begins no escape, about which Python's parser would warn."""
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


class OpenCall:
    """A call whose arguments are being written: a JSON object behind its name."""

    def __init__(self, name: str, arguments_at: int) -> None:
        """The arguments begin at `arguments_at` in the text of the call."""
        self.name = name
        self.arguments = ""
        """The arguments so far, as they are written, with line breaks in strings escaped."""
        self.is_over = False
        self._n_read = arguments_at
        self._depth = 0
        self._in_string = self._is_escaped = False

    @classmethod
    def begun(cls, text: str, names: Container[str]) -> Self | None:
        """The call of one of `names` whose arguments a text has begun; None if there is none."""
        head = _HEAD.match(text)
        if head is None:
            return None
        try:
            name = json.loads(f'"{head[1]}"')
        except ValueError:
            return None
        return cls(name, head.end()) if name in names else None

    def push(self, text: str) -> str:
        """The arguments that are new in `text`, that of the call so far."""
        new = "".join(map(self._take, text[self._n_read :]))
        self._n_read = len(text)
        self.arguments += new
        return new

    def is_of(self, text: str) -> bool:
        """False once the text was found to be no call, and is held back no longer."""
        return len(text) >= self._n_read

    def _take(self, character: str) -> str:
        if self.is_over:
            return ""
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
            return json.dumps(character)[1:-1] if character < " " else character
        if character == "<":  # a mark that ends a call without its last brackets
            self.is_over = True
            return ""
        self._in_string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        self.is_over = self._depth == 0
        return character


def written(arguments: Any) -> str:
    """The arguments as JSON text that is valid Unicode."""
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a model escaped
        return json.dumps(arguments)
    return text


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


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError):
        return False
    return True


def lenient(text: str) -> Any:
    """The value of JSON without its last brackets, or of Python's notation. Raises ValueError."""
    for ending in ("", "}", "}}", "]", "]}"):
        with suppress(ValueError, RecursionError):
            return _DECODER.decode(text.strip() + ending)
    try:
        return python_value(ast.parse(python_source(text.strip()), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("no JSON, nor Python") from error


def python_source(text: str) -> str:
    """The text with backslashes doubled that begin no escape."""
    return _NO_ESCAPE.sub(r"\\\\", text)


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
