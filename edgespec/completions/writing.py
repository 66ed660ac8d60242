"""Splits the text of a chat answer into reasoning, content and tool calls, incrementally.

Returns OpenAI's deltas.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Part
from edgespec.completions.calls import Parameters, ToolCall
from edgespec.completions.tool_calls import CallSplitter

Delta = dict[str, Any]


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class MessageWriter:
    """Builds an assistant message from its text.

    `tools` are the names of callable tools, or their parameters' schemas by name.
    """

    def __init__(
        self,
        prompt: ChatPrompt,
        tools: Collection[str] | Mapping[str, Parameters],
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.new_splitter = prompt.splitter
        """Returns a splitter of reasoning for the beginning of the text."""
        self._reasoning = prompt.splitter()
        self._calls = CallSplitter(tools) if tools else None
        self._new_id = new_id
        self._content = ""
        self._reasoning_content = ""
        self._sent_calls: list[dict[str, Any]] = []
        self._names = frozenset(tools)
        self._open: OpenCall | None = None
        """The call whose arguments are being streamed."""
        self._open_id = ""

    def push(self, text: str) -> list[Delta]:
        """Append text and return the resulting deltas."""
        return self._deltas(self._reasoning.push(text))

    def stream(self, text: str) -> list[Delta]:
        """`push`, and the arguments of a call as they are written.

        What has been sent cannot be taken back: a call that is cut off, or turns out to be none,
        stays a call with the arguments so far.
        """
        deltas = self.push(text)
        if self._calls is not None:
            held = self._calls.held
            if self._open is not None and not self._open.is_of(held):
                self._keep_open_call()
            deltas += self._arguments(held)
        return deltas

    def finish(self) -> list[Delta]:
        """End the text and return the deltas that were held back."""
        deltas = self._deltas(self._reasoning.finish())
        if self._calls is not None:
            rest = self._calls.finish()
            is_cut_off = len(self._calls.calls) == len(self._sent_calls)
            if self._open is not None and is_cut_off:
                self._keep_open_call()
            elif rest:
                deltas.append(self._answer(rest))
            deltas += self._new_calls(self._calls.calls)
        return deltas

    @property
    def has_calls(self) -> bool:
        return bool(self._sent_calls)

    @property
    def message(self) -> dict[str, Any]:
        """The message in OpenAI's format, with `reasoning_content` if there is reasoning."""
        message: dict[str, Any] = {"content": self._content}
        if self._reasoning_content:
            message["reasoning_content"] = self._reasoning_content
        if self._sent_calls:
            message["tool_calls"] = self._sent_calls
            message["content"] = self._content or None
        return message

    def _deltas(self, parts: list[Part]) -> list[Delta]:
        deltas: list[Delta] = []
        for part in parts:
            if part.kind == "reasoning":
                self._reasoning_content += part.text
                deltas.append({"reasoning_content": part.text})
            elif self._calls is None:
                deltas.append(self._answer(part.text))
            else:
                if text := self._calls.push(part.text):
                    deltas.append(self._answer(text))
                deltas += self._new_calls(self._calls.calls)
        return deltas

    def _answer(self, text: str) -> Delta:
        self._content += text
        return {"content": text}

    def _new_calls(self, calls: list[ToolCall]) -> list[Delta]:
        deltas: list[Delta] = []
        for index in range(len(self._sent_calls), len(calls)):
            if self._open is not None:
                deltas += self._ended_call(index, calls[index])
                continue
            call = calls[index].as_dict(self._new_id())
            self._sent_calls.append(call)
            deltas.append({"tool_calls": [{"index": index} | call]})
        return deltas

    def _arguments(self, held: str) -> list[Delta]:
        """Deltas of the call that `held` has begun."""
        assert self._calls is not None
        deltas: list[Delta] = []
        index = len(self._sent_calls)
        if self._open is None and index == len(self._calls.calls):
            self._open = OpenCall.begun(held, self._names)
            if self._open is not None:
                self._open_id = self._new_id()
                begun = ToolCall(self._open.name, "").as_dict(self._open_id)
                deltas.append({"tool_calls": [{"index": index} | begun]})
        if self._open is not None and (text := self._open.push(held)):
            deltas.append(_more_arguments(index, text))
        return deltas

    def _ended_call(self, index: int, call: ToolCall) -> list[Delta]:
        """The rest of the call that was being streamed."""
        assert self._open is not None
        sent, self._open = self._open.arguments, None
        rest = call.arguments.removeprefix(sent) if call.arguments.startswith(sent) else ""
        self._sent_calls.append(ToolCall(call.name, sent + rest).as_dict(self._open_id))
        return [_more_arguments(index, rest)] if rest else []

    def _keep_open_call(self) -> None:
        assert self._open is not None
        call = ToolCall(self._open.name, self._open.arguments)
        self._sent_calls.append(call.as_dict(self._open_id))
        self._open = None


def _more_arguments(index: int, text: str) -> Delta:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


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
