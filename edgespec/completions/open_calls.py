"""Follows the JSON of a tool call while a model writes it, for streams.

Knows the beginning of a call and JSON's characters, and nothing of the text around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Self

_HEAD = re.compile(
    r'[^{"]*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""A call up to its arguments, behind the marks that open it."""
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]..")
_LONGEST_PAIR = 12
"""Characters of the escapes of a surrogate pair."""


class OpenCall:
    """A call whose arguments are being written."""

    def __init__(self, name: str, arguments_at: int) -> None:
        """The arguments begin at `arguments_at` in the text that is held back."""
        self.name = name
        self.arguments = ""
        """The arguments so far, as `json.dumps` writes them."""
        self._n_read = arguments_at
        self._rewriter = JsonRewriter()

    @classmethod
    def begun(cls, held: str, names: Collection[str]) -> Self | None:
        """The call of one of `names` whose arguments `held` has begun; None if there is none."""
        head = _HEAD.match(held)
        if head is None:
            return None
        try:
            name = json.loads(f'"{head[1]}"')
        except ValueError:
            return None
        return cls(name, head.end()) if name in names else None

    def push(self, held: str) -> str:
        """The arguments that are new in `held`, the text of the call so far."""
        text = self._rewriter.push(held[self._n_read :])
        self._n_read = len(held)
        self.arguments += text
        return text

    def is_of(self, held: str) -> bool:
        """False once the text was found to be no call, and is held back no longer."""
        return len(held) >= self._n_read


class JsonRewriter:
    """Rewrites a JSON value piece by piece as `json.dumps` writes it, up to its end."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_over = False
        self._in_string = False
        self._word = ""
        """A number or a literal, or an escape in a string, that is not complete."""

    def push(self, text: str) -> str:
        """Append text and return what is certain; nothing from the first mistake on."""
        written: list[str] = []
        for character in text:
            if self._is_over:
                break
            take = self._string if self._in_string else self._structure
            written.append(take(character))
        return "".join(written)

    def _structure(self, character: str) -> str:
        if character not in ' \t\r\n{}[],:"':
            self._word += character
            return ""
        word = self._ended_word()
        if self._is_over:
            return ""
        if character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._is_over = self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in ",:":
            return f"{word}{character} "
        return word + character.strip()

    def _ended_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        try:
            return json.dumps(json.loads(word))
        except ValueError:
            self._is_over = True
            return ""

    def _string(self, character: str) -> str:
        if not self._word:
            if character == "\\":
                self._word = character
                return ""
            self._in_string = character != '"'
            return character if character == '"' else _in_json(character)
        if character != "\\" and _ESCAPE.fullmatch(self._word):  # half a pair, without the other
            return self._ended_escape() + self._string(character)
        self._word += character
        return "" if _is_half(self._word) else self._ended_escape()

    def _ended_escape(self) -> str:
        escape, self._word = self._word, ""
        try:
            return _in_json(json.loads(f'"{escape}"'))
        except ValueError:
            self._is_over = True
            return ""


def _is_half(escape: str) -> bool:
    """True if more characters belong to an escape, or to its surrogate pair."""
    first = _ESCAPE.match(escape)
    if first is None:
        return len(escape) < len("\\u0000")
    if not _HIGH_SURROGATE.match(escape):
        return False
    return len(escape) < _LONGEST_PAIR and "\\u".startswith(escape[6:8])


def _in_json(text: str) -> str:
    """The characters as they stand in a string; half of a surrogate pair stays an escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]
