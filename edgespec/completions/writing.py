"""Splits the text of a chat answer into reasoning, content and tool calls, incrementally.

Returns OpenAI's deltas.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Part
from edgespec.completions.call_reading import Parameters, ToolCall
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
        self._reasoning = prompt.splitter()
        self._calls = CallSplitter(tools) if tools else None
        self._new_id = new_id
        self._content = ""
        self._reasoning_content = ""
        self._sent_calls: list[dict[str, Any]] = []

    def push(self, text: str) -> list[Delta]:
        """Append text and return the resulting deltas."""
        return self._deltas(self._reasoning.push(text))

    def finish(self) -> list[Delta]:
        """End the text and return the deltas that were held back."""
        deltas = self._deltas(self._reasoning.finish())
        if self._calls is not None:
            if rest := self._calls.finish():
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
            call = calls[index].as_dict(self._new_id())
            self._sent_calls.append(call)
            deltas.append({"tool_calls": [{"index": index} | call]})
        return deltas
