"""Separates a model's reasoning from its answer while the text is being generated.

Knows the marks that chat templates put around reasoning, and the channels of gpt-oss: a message is
a header, `<|message|>` and a body, and the channel `analysis` is reasoning. A header that names a
function stays in front of its body, so that a call can be read there. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class Marks:
    """Texts before and after reasoning."""

    begin: str
    end: str
    shown: tuple[str, ...] = ()
    """Control tokens in them, if they are more than one token."""
    ending: str = ""
    """Text that ends reasoning; empty: the end mark on a line of its own."""
    in_channels: bool = False
    """True if the answer stands in a channel, too."""


KNOWN_MARKS = (
    Marks("<think>", "</think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("<mm:think>", "</mm:think>"),
    Marks("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>"), "\n<channel|>"),
    Marks(
        "<|channel|>analysis",
        "<|end|>",
        ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        in_channels=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A text that is all reasoning or all answer."""

    kind: Kind
    text: str


def marks_of(template: str) -> Marks | None:
    """The marks of reasoning in a chat template's source; None if it has none."""
    return next((m for m in KNOWN_MARKS if m.begin in template or m.end in template), None)


def is_open(prompt: str, marks: Marks) -> bool:
    """True if the answer to `prompt` begins inside reasoning, whose mark the template wrote."""
    return prompt.rstrip().endswith(marks.begin)


class ReasoningSplitter:
    """Splits an answer piece by piece; holds back only what may be part of a mark.

    Reasoning comes first or not at all: a mark in the middle of an answer is plain text. Blanks
    around reasoning belong to neither part. Without marks all text is answer.
    """

    def __init__(self, marks: Marks | None, inside: bool = False) -> None:
        self._marks = marks
        self._kind: Kind | None = "answer"
        """Kind of the current text; None until it is known."""
        if marks is not None:
            self._kind = "reasoning" if inside else None
        self._held = ""
        self._drops_blanks = inside

    @property
    def is_reasoning(self) -> bool:
        """True if the text so far ends in reasoning."""
        return self._kind == "reasoning"

    def push(self, text: str) -> list[Part]:
        """Add text and return the parts whose kind is known."""
        self._held += text
        parts: list[Part] = []
        if self._marks is not None:
            self._look_for_begin(self._marks.begin)
            if self._kind == "reasoning":
                parts += self._reason(self._marks.end)
        if self._kind == "answer":
            parts += self._take(len(self._held))
        return parts

    def finish(self) -> list[Part]:
        """Return the text that was held back; no more text follows."""
        if self._kind == "reasoning":
            self._held = self._held.rstrip()
        self._kind = self._kind or "answer"
        return self._take(len(self._held))

    def _look_for_begin(self, begin: str) -> None:
        if self._kind is not None:
            return
        text = self._held.lstrip()
        if text.startswith(begin):
            self._kind, self._held, self._drops_blanks = "reasoning", text[len(begin) :], True
        elif not begin.startswith(text):
            self._kind = "answer"

    def _reason(self, end: str) -> list[Part]:
        before, found, after = self._held.partition(end)
        if found:
            parts = self._take(len(before.rstrip()))
            self._kind, self._held, self._drops_blanks = "answer", after, True
            return parts
        keep = max((n for n in range(len(end)) if before.endswith(end[:n])), default=0)
        return self._take(len(before[: len(before) - keep].rstrip()))

    def _take(self, length: int) -> list[Part]:
        """Remove the first `length` characters of the held text and return them as a part."""
        text, self._held = self._held[:length], self._held[length:]
        if self._drops_blanks:
            text = text.lstrip()
            self._drops_blanks = not text
        return [Part(self._kind or "answer", text)] if text else []


CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
_ENDS = ("<|end|>", "<|return|>", START, CHANNEL)
"""Marks that end a body; the last two begin another header."""
_BEGINS = (CHANNEL, START, "to=", "<|end|>")


class ChannelSplitter:
    """Splits a text piece by piece; holds back only headers and what may be a mark."""

    def __init__(self) -> None:
        self._held = ""
        self._kind: Kind | None = None
        """Kind of the body; None in a header."""

    @property
    def is_reasoning(self) -> bool:
        """True if the text so far ends in reasoning."""
        return self._kind == "reasoning"

    def push(self, text: str) -> list[Part]:
        """Add text and return the parts whose kind is known."""
        self._held += text
        parts: list[Part] = []
        while self._held:
            found = self._body() if self._kind else self._header()
            if found is None:
                break
            parts += found
        return parts

    def finish(self) -> list[Part]:
        """Return the text that was held back; no more text follows."""
        text, self._held = self._held, ""
        is_mark = any(mark.startswith(text) for mark in _ENDS) or (
            self._kind is None and text.lstrip().startswith(_BEGINS)
        )
        return [Part(self._kind or "answer", text)] if text and not is_mark else []

    def _header(self) -> list[Part] | None:
        """Read a header; None if it is not complete."""
        header, mark, rest = self._held.partition(MESSAGE)
        if not mark:
            text = self._held.lstrip()
            if not text or any(b.startswith(text) or text.startswith(b) for b in _BEGINS):
                return None
            self._kind = "answer"  # a text without channels
            return []
        self._held = rest
        self._kind = "reasoning" if f"{CHANNEL}analysis" in header else "answer"
        if "to=" not in header or self._kind == "reasoning":
            return []
        named = header.replace(f"{START}assistant", "").replace("<|end|>", "").strip()
        return [Part("answer", named + MESSAGE)]

    def _body(self) -> list[Part] | None:
        """Take text of a body up to its end, as far as it is certain."""
        places = [(at, mark) for mark in _ENDS if (at := self._held.find(mark)) >= 0]
        kind = self._kind or "answer"
        if places:
            at, mark = min(places)
            text, self._kind = self._held[:at], None
            self._held = self._held[at + (0 if mark in _BEGINS[:2] else len(mark)) :]
            return [Part(kind, text)] if text else []
        keep = max(
            (n for mark in _ENDS for n in range(len(mark)) if self._held.endswith(mark[:n])),
            default=0,
        )
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        return [Part(kind, text)] if text else None
