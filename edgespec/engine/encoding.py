"""Encodes texts, one at a time, and refuses those far longer than the context.

Tokenizers take up to 125 bytes per byte of text (llama.cpp's, with blanks), so a text's length is
checked before it is encoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary

PIECE_CHARACTERS = 8
"""Characters of text per token of the context, more than most tokens have."""
MAX_PIECE_BYTES = 32
"""Most bytes per token on average, in all but very short texts; single tokens of blanks have up to
some hundreds."""
MIN_TOKENS = 64
"""Smaller contexts are treated like this one, because texts are cut within words."""


class Encoder:
    """Encodes prompts for one model, one at a time, from any thread."""

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
        """Length of the longest text that is encoded."""
        return max_characters(self._vocabulary.longest_piece_bytes, self._n_ctx)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`. Raises UsageError for a text far longer than the context."""
        if len(text) > self.max_characters:
            raise UsageError(
                f"the prompt has {len(text):,} characters, and the context, {self._n_ctx:,} "
                f"tokens, holds at most {self.max_characters:,}: shorten the prompt or raise "
                "--ctx-size"
            )
        with self._turn, self._use():
            return encoded(text, self._vocabulary, self._n_ctx, add_special)


def max_characters(longest_piece_bytes: int, n_ctx: int) -> int:
    """Length of the longest text that can fit into a context."""
    return min(longest_piece_bytes, MAX_PIECE_BYTES) * max(n_ctx, MIN_TOKENS)


def encoded(text: str, vocabulary: Vocabulary, n_ctx: int, add_special: bool = True) -> list[int]:
    """Token ids of a text. Raises UsageError for one that is far longer than the context.

    To refuse a text without encoding all of it, its number of tokens is bounded from below, first
    by the longest piece of the vocabulary, then by encoding growing prefixes: a text has at least
    as many tokens as its prefix, except for a few at the cut, so twice the context is sufficient.
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
