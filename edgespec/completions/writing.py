"""Splits the text of a chat answer into reasoning, content and tool calls, incrementally.

Returns OpenAI's deltas.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Part
from edgespec.completions.calls import Parameters, ToolCall
from edgespec.completions.open_calls import OpenCall
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
