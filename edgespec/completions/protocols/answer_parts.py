"""Splits the deltas of a chat answer into its parts: reasoning, text and calls, one by one.

Knows OpenAI's deltas, and nothing of the protocol that the parts are translated to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from edgespec.completions.answers import Answer

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class AnswerPart:
    """A part of an answer, which grows while it is the last one."""

    kind: Kind
    index: int
    """Its place in the answer."""
    text: str = ""
    """The reasoning, the text, or the arguments of the call as JSON."""
    call_id: str = ""
    name: str = ""
    """Name of the called function."""
    logprobs: list[Any] = field(default_factory=list)
    """Log probabilities of a text, as in a chat completion."""


@dataclass(frozen=True, slots=True)
class Change:
    """A part begins, grows by `text`, or ends."""

    kind: Literal["begins", "grows", "ends"]
    part: AnswerPart
    text: str = ""
    logprobs: tuple[Any, ...] = ()


class AnswerParts:
    """The parts of one answer so far."""

    def __init__(self) -> None:
        self.parts: list[AnswerPart] = []
        self.finish_reason: str | None = None
        self._is_open = False
        self._n_calls = 0

    def read_whole(self, answer: Answer) -> None:
        """Read the first choice of a whole answer."""
        choice = answer["choices"][0]
        message = choice["message"]
        calls = [{"index": i} | call for i, call in enumerate(message.get("tool_calls") or ())]
        deltas = [
            {"reasoning_content": message.get("reasoning_content")},
            {"content": message.get("content")},
            {"tool_calls": calls},
        ]
        for delta in deltas:
            logprobs = choice["logprobs"] if delta.get("content") else None
            for _ in self.read({"choices": [{"delta": delta, "logprobs": logprobs}]}):
                pass
        self.finish_reason = choice["finish_reason"]
        for _ in self.finish():
            pass

    def read(self, chunk: Answer) -> Iterator[Change]:
        """Read a chunk of a stream, and say what changes."""
        for choice in chunk["choices"][:1]:
            delta = choice["delta"]
            logged = tuple((choice.get("logprobs") or {}).get("content") or ())
            if text := delta.get("reasoning_content"):
                yield from self._grow("reasoning", text)
            if text := delta.get("content"):
                yield from self._grow("text", text, logged)
            for call in delta.get("tool_calls") or ():
                yield from self._call(call)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def finish(self) -> Iterator[Change]:
        """End the last part."""
        if self._is_open:
            self._is_open = False
            yield Change("ends", self.parts[-1])

    def message(self) -> dict[str, Any]:
        """The answer as a message of a conversation in OpenAI's format."""
        texts = {
            kind: "".join(part.text for part in self.parts if part.kind == kind)
            for kind in ("reasoning", "text")
        }
        calls = [
            {
                "id": part.call_id,
                "type": "function",
                "function": {"name": part.name, "arguments": part.text},
            }
            for part in self.parts
            if part.kind == "call"
        ]
        message: dict[str, Any] = {"role": "assistant", "content": texts["text"]}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if calls:
            message["tool_calls"] = calls
        return message

    def _grow(self, kind: Kind, text: str, logged: tuple[Any, ...] = ()) -> Iterator[Change]:
        if not self._is_open or self.parts[-1].kind != kind:
            yield from self._begin(AnswerPart(kind, len(self.parts)))
        part = self.parts[-1]
        part.text += text
        part.logprobs += logged
        yield Change("grows", part, text, logged)

    def _call(self, call: dict[str, Any]) -> Iterator[Change]:
        function = call["function"]
        if call["index"] >= self._n_calls:
            self._n_calls += 1
            part = AnswerPart("call", len(self.parts), "", call["id"], function["name"])
            yield from self._begin(part)
        if text := function.get("arguments"):
            part = self.parts[-1]
            part.text += text
            yield Change("grows", part, text)

    def _begin(self, part: AnswerPart) -> Iterator[Change]:
        yield from self.finish()
        self.parts.append(part)
        self._is_open = True
        yield Change("begins", part)
