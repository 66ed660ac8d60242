"""Splits the text of a chat answer into reasoning, text and tool calls, incrementally."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Part
from edgespec.completions.calls import Parameters, ToolCall
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Kind, message_of
from edgespec.completions.tool_calls import CallSplitter


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class MessageWriter:
    """Builds an assistant message, part by part, from its text.

    `tools` are the names of callable tools, or their parameters' schemas by name.
    """

    def __init__(
        self,
        prompt: ChatPrompt,
        tools: Collection[str] | Mapping[str, Parameters],
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.parts: list[AnswerPart] = []
        self.new_splitter = prompt.splitter
        """Returns a splitter of reasoning for the beginning of the text."""
        self._reasoning = prompt.splitter()
        self._calls = CallSplitter(tools) if tools else None
        self._new_id = new_id
        self._names = frozenset(tools)
        self._is_open = False
        """True while the last part may grow."""
        self._n_read = 0
        """Calls of the text that are parts."""
        self._n_calls = 0
        self._open: OpenCall | None = None
        """The call whose arguments are being streamed, in the last part."""

    def push(self, text: str) -> list[Change]:
        """Append text and return the resulting changes."""
        return self._changes(self._reasoning.push(text))

    def stream(self, text: str) -> list[Change]:
        """`push`, and the arguments of a call as they are written.

        What has been sent cannot be taken back: a call that is cut off, or turns out to be none,
        stays a call with the arguments so far.
        """
        changes = self.push(text)
        if self._calls is not None:
            held = self._calls.held
            if self._open is not None and not self._open.is_of(held):
                self._open = None
            changes += self._arguments(held)
        return changes

    def finish(self) -> list[Change]:
        """End the text and return the changes that were held back."""
        changes = self._changes(self._reasoning.finish())
        if self._calls is not None:
            rest = self._calls.finish()
            is_cut_off = self._open is not None and len(self._calls.calls) == self._n_read
            if rest and not is_cut_off:
                changes += self._grow("text", rest)
            changes += self._new_calls(self._calls.calls)
        return changes + self._end()

    @property
    def has_calls(self) -> bool:
        return self._n_calls > 0

    @property
    def message(self) -> dict[str, Any]:
        """The message in OpenAI's format, with `reasoning_content` if there is reasoning."""
        return message_of(self.parts)

    def _changes(self, parts: list[Part]) -> list[Change]:
        changes: list[Change] = []
        for part in parts:
            if part.kind == "reasoning":
                changes += self._grow("reasoning", part.text)
            elif self._calls is None:
                changes += self._grow("text", part.text)
            else:
                text = self._calls.push(part.text)
                if self._open is not None:  # what comes now is behind the call
                    changes += self._new_calls(self._calls.calls)
                if text:
                    changes += self._grow("text", text)
                changes += self._new_calls(self._calls.calls)
        return changes

    def _grow(self, kind: Kind, text: str) -> list[Change]:
        changes: list[Change] = []
        if not self._is_open or self.parts[-1].kind != kind:
            changes = self._begin(AnswerPart(kind, len(self.parts)))
        self.parts[-1].text += text
        return [*changes, Change("grows", self.parts[-1], text)]

    def _begin(self, part: AnswerPart) -> list[Change]:
        changes = self._end()
        self.parts.append(part)
        self._is_open = True
        return [*changes, Change("begins", part, part.text)]

    def _begin_call(self, call: ToolCall) -> list[Change]:
        part = AnswerPart(
            "call", len(self.parts), call.arguments, self._new_id(), call.name, self._n_calls
        )
        self._n_calls += 1
        return self._begin(part)

    def _end(self) -> list[Change]:
        if not self._is_open:
            return []
        self._is_open, self._open = False, None
        return [Change("ends", self.parts[-1])]

    def _new_calls(self, calls: list[ToolCall]) -> list[Change]:
        changes: list[Change] = []
        for call in calls[self._n_read :]:
            self._n_read += 1
            if self._open is None:
                changes += self._begin_call(call)
                continue
            sent, self._open = self._open.arguments, None
            if call.arguments.startswith(sent) and (rest := call.arguments[len(sent) :]):
                changes += self._grow("call", rest)
        return changes

    def _arguments(self, held: str) -> list[Change]:
        """Changes of the call that `held` has begun."""
        assert self._calls is not None
        changes: list[Change] = []
        if self._open is None and self._n_read == len(self._calls.calls):
            begun = OpenCall.begun(held, self._names)
            if begun is not None:
                changes = self._begin_call(ToolCall(begun.name, ""))
            self._open = begun
        if self._open is not None and (text := self._open.push(held)):
            changes += self._grow("call", text)
        return changes


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
