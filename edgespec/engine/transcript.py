"""The text of one generation: turns committed tokens into events, and finds its end."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary
from edgespec.values import FinishReason, TokenEvent, TokenLogprobs


class Transcript:
    """The tokens and text of a generation, up to its end.

    It ends with an end-of-generation token (which is one of the tokens and adds no text), at the
    first stop string (which is cut off with all that follows), or at `limit` tokens. Bytes of an
    incomplete character, and text that may be the beginning of a stop string, are held back.
    Invalid UTF-8 becomes U+FFFD.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: Sequence[str],
        limit: int,
        limit_reason: FinishReason,
        shown: Mapping[int, str] | None = None,
    ) -> None:
        """`shown` is the text of control tokens that are to be visible."""
        if isinstance(stop, str) or not all(stop):
            raise UsageError(f"stop is a list of strings that are not empty, not {stop!r}")
        self._vocabulary = vocabulary
        self._shown = dict(shown or {})
        self._stop = tuple(stop)
        self._limit = limit
        self._limit_reason = limit_reason
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self._texts: list[str] = []
        self.tokens: list[int] = []
        self.stopped_by: str | None = None
        """The stop string that has ended the text."""
        self.finish_reason: FinishReason | None = None if limit > 0 else limit_reason

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def room(self) -> int:
        """Number of tokens up to the limit."""
        return self._limit - len(self.tokens)

    def take(self, token: int, round_: int, logprobs: TokenLogprobs | None = None) -> TokenEvent:
        """Add the target's next token, which may end the text."""
        self.tokens.append(token)
        text = ""
        if token in self._vocabulary.eog_tokens:
            self.finish_reason = "stop"
        else:
            shown = self._shown.get(token, "").encode()
            text = self._decide(self._decoder.decode(shown or self._vocabulary.piece(token)))
            if self.stopped_by is not None:
                self.finish_reason = "stop"
            elif self.room == 0:
                self.finish_reason = self._limit_reason
        if self.is_finished:
            text += self._rest()
        self._texts.append(text)
        return TokenEvent(text, token, "target", round_, logprobs)

    def cancel(self) -> None:
        """End the text here, including text that was held back, unless it has already ended."""
        if not self.is_finished:
            self.finish_reason = "cancelled"
            self._texts.append(self._rest())

    def _rest(self) -> str:
        """The text that was held back; no more bytes follow."""
        text = self._decide(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _decide(self, text: str) -> str:
        """The text that is no longer held back after `text`."""
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:  # the one that ends first, however the text is split
            _, at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _undecided(self, text: str) -> int:
        """Length of the longest suffix of `text` that is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
