"""Attention window of a draft model over a long text: its first tokens and its latest ones.

Attention goes mostly to a text's first tokens (sinks) and its latest ones (StreamingLLM, arXiv
2309.17453), so a draft with both guesses nearly as well as one with all of the text, at a constant
cache size. Knows the model through its port, and no tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.ports import LanguageModel, PassPart

SINK_TOKENS = 4
"""Number of first tokens that are always kept."""
MIN_ROOM = 128
"""Free cells below which the window moves, as guesses need some."""
MIN_WINDOW = 16
"""Smallest context with a moving window; in a smaller one, guesses end when it is full."""


class Window:
    """A draft model's window over one text.

    When the context is full, the model reads its latest half again after the first tokens. This
    costs one more token to read per token of text.
    """

    def __init__(self, model: LanguageModel, slot: int = 0, max_tokens: int = 0) -> None:
        """`max_tokens`: length of the longest text, which may be more than the model's context."""
        self._model = model
        self._slot = slot
        n_ctx = model.info.n_ctx
        self.moves = MIN_WINDOW <= n_ctx < max_tokens
        """True if texts may become longer than the model's context."""
        self._n_latest = n_ctx // 2 - SINK_TOKENS
        self._least_room = min(MIN_ROOM, n_ctx // 4)
        self._n_left_out = 0
        """Number of tokens between the first ones and the latest ones."""

    @property
    def n_held(self) -> int:
        """Number of tokens that the model holds."""
        return self._model.committed_of(self._slot)

    @property
    def n_read(self) -> int:
        """Number of tokens of the text up to the last one that the model holds."""
        return self.n_held + self._n_left_out

    @property
    def n_leading(self) -> int:
        """Length of the text's prefix that the model holds without a gap."""
        return SINK_TOKENS if self._n_left_out else self.n_held

    @property
    def room(self) -> int:
        """Number of free cells in the model's context."""
        return self._model.info.n_ctx - self.n_held

    def must_move(self, n_tokens: int) -> bool:
        """True if the window must move to have room for guesses after `n_tokens`."""
        return self.moves and self.room - max(0, n_tokens - self.n_read) < self._least_room

    def n_unread(self, n_tokens: int) -> int:
        """Number of tokens that `read` computes for a text of `n_tokens`."""
        if self.must_move(n_tokens):
            return self._n_latest
        return max(0, n_tokens - self.n_read)

    def read(self, text: Sequence[int]) -> None:
        """Read the rest of `text`, or move the window to its end."""
        if not self.must_move(len(text)):
            self.append(text[self.n_read :])
            return
        self.rewind(min(SINK_TOKENS, self.n_leading))
        begin = len(text) - self._n_latest
        self.append([*text[self.n_held : SINK_TOKENS], *text[begin:]])
        self._n_left_out = begin - SINK_TOKENS

    def rewind(self, n_tokens: int) -> None:
        """Drop guesses and all but the first `n_tokens` of the text.

        If less than half of a moved window would remain, keep only the first tokens, so that the
        window is read again.
        """
        n_held = n_tokens - self._n_left_out
        if self._n_left_out and n_held < SINK_TOKENS + self._n_latest // 2:
            n_held = min(n_tokens, SINK_TOKENS)
            self._n_left_out = 0
        self._model.truncate(min(n_held, self.n_held), self._slot)
        if self.n_held < SINK_TOKENS:
            self._n_left_out = 0

    def append(self, tokens: Sequence[int]) -> None:
        """Read the text's next tokens."""
        self._model.evaluate([PassPart(self._slot, reads=tokens)])
