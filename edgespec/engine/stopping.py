"""From bytes to text that may be shown: whole characters, and never part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from edgespec.errors import UsageError


class TextStream:
    """Decodes UTF-8 as it comes and ends the text before the first stop string.

    Bytes of an unfinished character and text that a stop string may still complete are held back.
    Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise UsageError(f"stop is a list of strings that are not empty, not {stop!r}")
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """True once a stop string has ended the text."""

    def push(self, piece: bytes) -> str:
        """Take more bytes and return the text that is decided by now."""
        return self._decide(self._decoder.decode(piece))

    def finish(self) -> str:
        """No more bytes will come: return what was held back."""
        text = self._decide(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _decide(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        end = self._first_stop(text)
        if end is not None:
            self.stopped = True
            self._held = ""
            return text[:end]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _first_stop(self, text: str) -> int | None:
        """Index of the stop string that is complete first, which does not depend on the pieces."""
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
