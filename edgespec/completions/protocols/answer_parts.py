"""The parts of a chat answer, in their order: reasoning, text and calls, which grow one by one.

Knows no protocol; each formats the changes of parts in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgespec.values import TokenEvent

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
    n_calls_before: int = 0
    logprobs: list[Any] = field(default_factory=list)
    """Log probabilities of a text, as in a chat completion."""

    def as_call(self) -> dict[str, Any]:
        """The call in OpenAI's format."""
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Change:
    """A part begins with `text`, grows by it, or ends."""

    kind: Literal["begins", "grows", "ends"]
    part: AnswerPart
    text: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A step of a stream: a change, or the end and its reason, and the tokens that led to
    it."""

    change: Change | None = None
    finish_reason: str | None = None
    logprobs: Sequence[Any] = ()
    """Log probabilities of the tokens, as in a chat completion."""
    events: Sequence[TokenEvent] = ()


def message_of(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    """The parts as a message of the assistant in OpenAI's format, without its role."""
    texts = {
        kind: "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "text")
    }
    calls = [part.as_call() for part in parts if part.kind == "call"]
    message: dict[str, Any] = {"content": texts["text"]}
    if texts["reasoning"]:
        message["reasoning_content"] = texts["reasoning"]
    if calls:
        message["tool_calls"] = calls
        message["content"] = texts["text"] or None
    return message


def delta_of(change: Change) -> dict[str, Any] | None:
    """The change as OpenAI's delta; None if it has none."""
    part = change.part
    if part.kind == "call":
        index = {"index": part.n_calls_before}
        if change.kind == "begins":
            begun = AnswerPart("call", 0, change.text, part.call_id, part.name)
            return {"tool_calls": [index | begun.as_call()]}
        if change.kind == "grows":
            return {"tool_calls": [index | {"function": {"arguments": change.text}}]}
    elif change.kind == "grows":
        return {"reasoning_content" if part.kind == "reasoning" else "content": change.text}
    return None
