"""Separates a model's reasoning from its answer while the text is being generated.

Knows the marks that chat templates put around reasoning, and the channels of gpt-oss: a message is
a header, `<|message|>` and a body, and the channel `analysis` is reasoning. A header that names a
function stays in front of its body, so that a call can be read there. Knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class Marks:
    """Texts before and after reasoning."""

    begin: str
    end: str
    ending: str = ""
    """Text that ends reasoning; empty: the end mark on a line of its own."""


_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
_SLASHED = ("<think>", "<thinking>", "<seed:think>", "[THINK]", "<mm:think>")
KNOWN_MARKS = (
    *(Marks(begin, f"{begin[0]}/{begin[1:]}") for begin in _SLASHED),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("<|channel>thought", "<channel|>", "\n<channel|>"),
    Marks("<|channel|>analysis", "<|end|>", _FINAL),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A text that is all reasoning or all answer."""

    kind: Kind
    text: str


def marks_of(template: str) -> Marks | None:
    """The marks of reasoning in a chat template's source; None if it has none."""
    return next((m for m in KNOWN_MARKS if m.begin in template or m.end in template), None)


class ReasoningSplitter:
    """Splits an answer piece by piece; holds back only what may be part of a mark.

    Reasoning comes first or not at all: a mark in the middle of an answer is plain text, except in
    channels. Blanks around reasoning belong to neither part. Without marks all text is answer.
    """

    def __init__(self, marks: Marks | None, before: str = "") -> None:
        """`before` is what was written of the text: the mark, and reasoning that goes on."""
        self._marks = marks
        self._text = ""
        self._told: dict[Kind, str] = {"reasoning": "", "answer": ""}
        self.is_reasoning = False
        """True if the text so far ends in reasoning."""
        self.push(before)

    def push(self, text: str, is_whole: bool = False) -> list[Part]:
        """Add text and return the parts whose kind is known."""
        if self._marks is None:
            return [Part("answer", text)] if text else []
        self._text += text
        split = _in_channels if self._marks.begin.startswith(CHANNEL) else _one_after_the_other
        self.is_reasoning, *texts = split(self._text, self._marks, is_whole)
        told, self._told = self._told, dict(zip(self._told, texts, strict=True))
        new = [Part(kind, its[len(told[kind]) :]) for kind, its in self._told.items()]
        return [part for part in new if part.text]

    def finish(self) -> list[Part]:
        """Return the text that was held back; no more text follows."""
        return self.push("", is_whole=True)


def _one_after_the_other(text: str, marks: Marks, is_whole: bool) -> tuple[bool, str, str]:
    """Reasoning and answer as far as they are known, behind true if the text ends in reasoning."""
    rest = text.lstrip()
    if not rest.startswith(marks.begin):
        is_known = is_whole or not marks.begin.startswith(rest)
        return False, "", text if is_known else ""
    reasoning, found, answer = rest.removeprefix(marks.begin).partition(marks.end)
    if not (found or is_whole):
        reasoning = _before_any(reasoning, [marks.end])
    return not found, reasoning.strip(), answer.lstrip()


CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
_ENDS = ("<|end|>", "<|return|>", START, CHANNEL)
"""Marks that end a body; the last two begin another header."""
_END = re.compile("|".join(map(re.escape, _ENDS)))
_BEGINS = (CHANNEL, START, "to=", "<|end|>")


def _in_channels(text: str, marks: Marks, is_whole: bool) -> tuple[bool, str, str]:
    """Reasoning and answer, to which incomplete headers do not belong, behind true if the text ends
    in reasoning."""
    told: dict[Kind, str] = {"reasoning": "", "answer": ""}
    kind: Kind = "answer"
    while text:
        header, found, body = text.partition(MESSAGE)
        start = text.lstrip()
        if found:
            is_call = "to=functions." in header  # in the channel `analysis`, too
            kind = "reasoning" if marks.begin in header and not is_call else "answer"
            if "to=" in header and kind == "answer":
                named = header.replace(f"{START}assistant", "").replace("<|end|>", "").strip()
                told[kind] += named.replace(marks.begin, f"{CHANNEL}commentary") + MESSAGE
        elif any(one.startswith(start) or start.startswith(one) for one in _BEGINS):
            return False, told["reasoning"], told["answer"]
        else:
            kind, body = "answer", text  # a text without channels
        if not (end := _END.search(body)):
            told[kind] += _before_any(body, _ENDS)
            break
        told[kind] += body[: end.start()]
        text = body[end.start() if end[0] in (START, CHANNEL) else end.end() :]
    return kind == "reasoning", told["reasoning"], told["answer"]


def _before_any(text: str, marks: Sequence[str]) -> str:
    """The text without an end that may be the beginning of a mark."""
    beginnings = (mark[:n] for mark in marks for n in range(len(mark)))
    return text[: len(text) - max(len(one) for one in beginnings if text.endswith(one))]
