"""Splits texts that are written in channels, as gpt-oss writes them, into reasoning and answer.

A message of a channel is a header, `<|message|>` and a body: the channel `analysis` is reasoning. A
header that names a function stays in front of its body, so that a call can be read there.
"""

from __future__ import annotations

from edgespec.chat.reasoning import Kind, Part

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
