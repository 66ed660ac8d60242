"""The parts of a chat answer, in their order: reasoning, text and calls, which grow one by one.

Knows no protocol; each formats the changes of parts in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgespec.values import PromptProgress, TokenEvent

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

    @property
    def is_told(self) -> bool:
        """True if a chat completion has a delta of it: texts only grow."""
        return self.kind == "grows" or (self.kind == "begins" and self.part.kind == "call")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a stream: the beginning of a text, a change of its parts, or its end with the
    reason."""

    index: int
    """Index of the choice that has the text."""
    change: Change | None = None
    finish_reason: str | None = None
    events: Sequence[TokenEvent] = ()
    """The tokens that led to it."""
    progress: PromptProgress | None = None
    """The progress of the prompt, if that is all that is told."""

    @property
    def begins(self) -> bool:
        """True for the first step of a text."""
        return (self.change, self.finish_reason, self.progress) == (None, None, None)


def message_of(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    """The parts as a message of the assistant in OpenAI's format, without its role."""
    reasoning, text = (
        "".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "text")
    )
    calls = [part.as_call() for part in parts if part.kind == "call"]
    message: dict[str, Any] = {"content": (text or None) if calls else text}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": calls} if calls else {})


def delta_of(change: Change) -> dict[str, Any] | None:
    """The change as OpenAI's delta; None if it has none."""
    part = change.part
    if not change.is_told:
        return None
    if part.kind != "call":
        return {"reasoning_content" if part.kind == "reasoning" else "content": change.text}
    call: dict[str, Any] = {"function": {"arguments": change.text}}
    if change.kind == "begins":
        call = replace(part, text=change.text).as_call()
    return {"tool_calls": [{"index": part.n_calls_before} | call]}
