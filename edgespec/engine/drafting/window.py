"""The part of a long text that a draft model holds: its first tokens, and those before its end.

Models lean on a text's first tokens whatever they say, and mostly on the latest ones otherwise
(StreamingLLM, arXiv 2309.17453). A draft with both guesses nearly as well as one that holds all,
and its cache does not grow with the text. Knows the model through its port, and no tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.ports import LanguageModel

SINK_TOKENS = 4
"""First tokens of a text that are always kept."""
MIN_ROOM = 128
"""Free cells below which the window moves: a tree's line of nodes takes some."""
MIN_WINDOW = 16
"""Tokens that a window must hold; a smaller context is filled once, and guesses end there."""


class Window:
    """A draft model's view of one text.

    When its context is full, the model reads the latest half of it again behind the first tokens:
    one token more for each token of the text, in batches.
    """

    def __init__(self, model: LanguageModel, max_tokens: int = 0) -> None:
        """`max_tokens`: length of the longest text, which may be more than the model's context."""
        self._model = model
        n_ctx = model.info.n_ctx
        self.moves = MIN_WINDOW <= n_ctx < max_tokens
        """True if texts may become longer than the model's context."""
        self._n_latest = n_ctx // 2 - SINK_TOKENS
        self._least_room = min(MIN_ROOM, n_ctx // 4)
        self._n_left_out = 0
        """Tokens between the first ones and the latest ones."""

    @property
    def n_read(self) -> int:
        """Tokens of the text up to the last one that the model holds."""
        return self._model.n_committed + self._n_left_out

    @property
    def n_leading(self) -> int:
        """Tokens of the text's beginning that the model holds without a gap."""
        return SINK_TOKENS if self._n_left_out else self._model.n_committed

    @property
    def room(self) -> int:
        """Tokens that the model still takes."""
        return self._model.info.n_ctx - self._model.n_committed

    def must_move(self, n_tokens: int) -> bool:
        """True if a text of `n_tokens` leaves no room for guesses."""
        return self.moves and self.room - max(0, n_tokens - self.n_read) < self._least_room

    def n_unread(self, n_tokens: int) -> int:
        """Tokens that `read` computes for a text of `n_tokens`."""
        if self.must_move(n_tokens):
            return self._n_latest
        return max(0, n_tokens - self.n_read)

    def read(self, text: Sequence[int]) -> None:
        """Read what the model does not hold of `text`, or the window at its end."""
        if not self.must_move(len(text)):
            self._model.prefill(text[self.n_read :])
            return
        self.rewind(min(SINK_TOKENS, self.n_leading))
        begin = len(text) - self._n_latest
        self._model.prefill([*text[self._model.n_committed : SINK_TOKENS], *text[begin:]])
        self._n_left_out = begin - SINK_TOKENS

    def rewind(self, n_tokens: int) -> None:
        """Forget the text but for its first `n_tokens`, and guesses. If hardly anything of a moved
        window would be left, forget all but the first tokens: the window is then read again."""
        n_held = n_tokens - self._n_left_out
        if self._n_left_out and n_held < SINK_TOKENS + self._n_latest // 2:
            n_held = min(n_tokens, SINK_TOKENS)
            self._n_left_out = 0
        self._model.truncate(min(n_held, self._model.n_committed))
        if self._model.n_committed < SINK_TOKENS:
            self._n_left_out = 0
