"""Splits the text of a chat answer into reasoning, text and tool calls, incrementally."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Part, ReasoningSplitter
from edgespec.completions.calls import Parameters, ToolCall
from edgespec.completions.families import BLOCKS
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Kind
from edgespec.completions.tool_calls import CallSplitter


class MessageWriter:
    """Builds an assistant message, part by part, from its text.

    Without a `prompt` it has one text. `tools` are the names of callable tools, or their
    parameters' schemas by name.

    Arguments of calls are told as they are written, and cannot be taken back: a call that is cut
    off, or turns out to be none, stays a call with the arguments so far.
    """

    def __init__(
        self,
        prompt: ChatPrompt | None = None,
        tools: Collection[str] | Mapping[str, Parameters] = (),
        most_calls: int | None = None,
    ) -> None:
        self.parts: list[AnswerPart] = []
        self._reasoning = ReasoningSplitter(None) if prompt is None else prompt.splitter()
        self._calls = CallSplitter(tools, prompt.template if prompt else "") if tools else None
        self._is_open = False
        """True while the last part may grow."""
        self._n_read, self._most_calls = 0, most_calls
        """Calls of the text that are parts, and at most become parts."""
        self.is_cut_off = False
        """True if the text has ended inside the arguments of a call."""

    def push(self, text: str) -> list[Change]:
        """Append text and return the resulting changes."""
        return self._split(self._reasoning.push(text)) + self._begun_call(is_last=False)

    def _begun_call(self, is_last: bool) -> list[Change]:
        changes: list[Change] = []
        is_full = self._n_read == self._most_calls
        if self._calls and not is_full and (call := self._calls.begun(is_last)):
            if not self._is_in_call:
                changes += self._begin_call(ToolCall(call.name, ""))
            if new := call.arguments[len(self.parts[-1].text) :]:
                changes += self._grow("call", new)
        return changes

    def finish(self) -> list[Change]:
        """End the text and return the changes that were held back."""
        changes = self._split(self._reasoning.finish()) + self._begun_call(is_last=True)
        if self._calls is not None:
            rest = self._calls.finish()
            self.is_cut_off = self._is_in_call and len(self._calls.calls) == self._n_read
            if rest and not self.is_cut_off:
                changes += self._grow("text", rest)
            changes += self._new_calls(self._calls)
            thought = "".join(part.text for part in self.parts if part.kind == "reasoning")
            is_open = self._reasoning.is_reasoning and not self.has_calls
            if is_open and any(mark in thought for mark in BLOCKS):  # as some models write them
                self._calls.push(thought)
                self._calls.finish()
                changes += self._new_calls(self._calls)
        return changes + self._end()

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning.is_reasoning

    @property
    def has_calls(self) -> bool:
        return any(part.kind == "call" for part in self.parts)

    @property
    def _is_in_call(self) -> bool:
        """True while the last part is a call whose arguments are being written."""
        return self._is_open and self.parts[-1].kind == "call"

    def _split(self, parts: Sequence[Part]) -> list[Change]:
        changes: list[Change] = []
        for part in parts:
            if part.kind == "reasoning" or self._calls is None:
                changes += self._grow("text" if part.kind == "answer" else "reasoning", part.text)
                continue
            text = self._calls.push(part.text)
            if self._is_in_call:  # text that comes while a call is open is behind it
                changes += self._new_calls(self._calls)
            changes += self._grow("text", text) if text else ()
            changes += self._new_calls(self._calls)
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
        n_calls, n_parts = sum(part.kind == "call" for part in self.parts), len(self.parts)
        call_id = f"call_{secrets.token_hex(12)}"
        return self._begin(AnswerPart("call", n_parts, call.arguments, call_id, call.name, n_calls))

    def _end(self) -> list[Change]:
        if not self._is_open:
            return []
        self._is_open = False
        return [Change("ends", self.parts[-1])]

    def _new_calls(self, splitter: CallSplitter) -> list[Change]:
        changes: list[Change] = []
        for call in splitter.calls[self._n_read : self._most_calls]:
            self._n_read += 1
            if not self._is_in_call:
                changes += [*self._begin_call(call), *self._end()]
                continue
            told = self.parts[-1].text
            if call.arguments.startswith(told) and (rest := call.arguments[len(told) :]):
                changes += self._grow("call", rest)
            changes += self._end()
        return changes
