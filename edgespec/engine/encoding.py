"""Texts become tokens: one at a time, and none that is far longer than the context.

A tokenizer takes up to 125 bytes for each byte of a text (llama.cpp's, of blanks): a text's length
is judged before it is encoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary

PIECE_CHARACTERS = 8
"""Characters of text for each token of the context: more than most tokens have."""
MAX_PIECE_BYTES = 32
"""Most bytes that tokens have on average, in any text longer than a few of them. Single tokens of
blanks have up to some hundreds."""
MIN_TOKENS = 64
"""Smaller contexts are taken for this one: texts are cut in the middle of a word."""


class Encoder:
    """Encodes what may become a prompt of one model. Any thread may ask; they take turns."""

    def __init__(
        self, vocabulary: Vocabulary, n_ctx: int, use: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`use` returns a context manager for each use of the model."""
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._use = use
        self._turn = threading.Lock()

    @property
    def max_characters(self) -> int:
        """Length of the longest text that is encoded at all."""
        return max_characters(self._vocabulary.longest_piece_bytes, self._n_ctx)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Raises UsageError for a text that is far longer than the context."""
        if len(text) > self.max_characters:
            raise UsageError(
                f"the prompt has {len(text):,} characters, and the context, {self._n_ctx:,} "
                f"tokens, holds at most {self.max_characters:,}: shorten the prompt or raise "
                "--ctx-size"
            )
        with self._turn, self._use():
            return encoded(text, self._vocabulary, self._n_ctx, add_special)


def max_characters(longest_piece_bytes: int, n_ctx: int) -> int:
    """Length of the longest text that a context may hold, whatever the text is."""
    return min(longest_piece_bytes, MAX_PIECE_BYTES) * max(n_ctx, MIN_TOKENS)


def encoded(text: str, vocabulary: Vocabulary, n_ctx: int, add_special: bool = True) -> list[int]:
    """Token ids of a text. Raises UsageError for one that is far longer than the context, before
    more of it is encoded than it takes to tell.

    A text has no fewer tokens than pieces of the longest kind. Most have by far more, so that the
    tokens of a beginning tell: a text has no fewer than its beginning, but for those at the cut;
    twice the context's leave no doubt.
    """
    most = max(n_ctx, MIN_TOKENS)
    if len(text) > vocabulary.longest_piece_bytes * most:
        n_tokens = len(text) // vocabulary.longest_piece_bytes
        raise UsageError(
            f"the prompt has {len(text):,} characters, which are {n_tokens:,} tokens at the "
            f"least: the context has {n_ctx:,}; shorten the prompt or raise --ctx-size"
        )
    length = 2 * most * PIECE_CHARACTERS
    while length < len(text):
        if len(vocabulary.encode(text[:length], add_special)) > 2 * most:
            raise UsageError(
                f"the prompt has {len(text):,} characters, and the first {length:,} of them more "
                f"tokens than the context, {n_ctx:,}: shorten the prompt or raise --ctx-size"
            )
        length *= 2
    return vocabulary.encode(text, add_special)
