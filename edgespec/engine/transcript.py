"""The text of one generation: committed tokens in, events out, and where the text ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.engine.stopping import TextStream
from edgespec.ports import Vocabulary
from edgespec.values import FinishReason, Origin, TokenEvent, TokenLogprobs


class Transcript:
    """Grows by committed tokens until one of them ends it.

    It ends with an end-of-generation token (which belongs to the tokens and adds no text), a stop
    string (cut off, with what follows), or at `limit` tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: Sequence[str],
        limit: int,
        limit_reason: FinishReason,
    ) -> None:
        self._vocabulary = vocabulary
        self._stream = TextStream(stop)
        self._limit = limit
        self._limit_reason = limit_reason
        self._texts: list[str] = []
        self.shown: Mapping[int, str] = {}
        """Text of control tokens, which add none by themselves."""
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None if limit > 0 else limit_reason

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return self._limit - len(self.tokens)

    def take(
        self, token: int, origin: Origin, round_: int, logprobs: TokenLogprobs | None = None
    ) -> TokenEvent:
        """Add the next token, which may end the text."""
        self.tokens.append(token)
        text = ""
        if token in self._vocabulary.eog_tokens:
            self.finish_reason = "stop"
        else:
            shown = self.shown.get(token, "").encode()
            text = self._stream.push(shown or self._vocabulary.piece(token))
            if self._stream.stopped:
                self.finish_reason = "stop"
            elif self.room == 0:
                self.finish_reason = self._limit_reason
        if self.is_finished:
            text += self._stream.finish()
        self._texts.append(text)
        return TokenEvent(text, token, origin, round_, logprobs)

    def cancel(self) -> None:
        """End the text here, unless it has ended; what was held back belongs to it."""
        if not self.is_finished:
            self.finish_reason = "cancelled"
            self._texts.append(self._stream.finish())
