"""Encodes texts, one at a time, and refuses those far longer than the context.

Tokenizers take up to 125 bytes per byte of text (llama.cpp's, with blanks), so a text's length is
checked before it is encoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from edgespec.errors import ContextOverflow
from edgespec.ports import Vocabulary
from edgespec.settings import arguments

TWO_BOS = (
    "the prompt begins with a BOS token, and the model's rules add another one, so that it begins "
    "with two: leave it out of the text"
)
"""Note on a prompt of which llama.cpp warns, too."""
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

    def too_long(self, n_characters: int) -> ContextOverflow | None:
        """The error for a text of so many characters; None if it is encoded."""
        longest = self._vocabulary.longest_piece_bytes
        if n_characters <= min(longest, MAX_PIECE_BYTES) * max(self._n_ctx, MIN_TOKENS):
            return None
        n_tokens = max(self._n_ctx + 1, n_characters // longest)
        return ContextOverflow(self._n_ctx, n_tokens, is_counted=False)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`. Raises ContextOverflow for a text far longer than the context."""
        if (error := self.too_long(len(text))) is not None:
            raise error
        with self._turn, self._use():
            return encoded(text, self._vocabulary, self._n_ctx, add_special)

    def prompt(self, prompt: str | Sequence[int]) -> tuple[list[int], tuple[str, ...]]:
        """Tokens of a prompt, text or tokens already, and notes on it. Raises UsageError."""
        if not isinstance(prompt, str):
            return arguments.token_ids("the prompt", prompt), ()
        tokens = self.encode(arguments.text("the prompt", prompt))
        has_two = tokens[:1] == tokens[1:2] == self.encode("")[:1]
        return tokens, (TWO_BOS,) if has_two else ()


def encoded(text: str, vocabulary: Vocabulary, n_ctx: int, add_special: bool = True) -> list[int]:
    """Token ids of a text. Raises ContextOverflow for one that is far longer than the context.

    To refuse a text without encoding all of it, growing prefixes are encoded: a text has at least
    as many tokens as its prefix, except for a few at the cut, so twice the context is sufficient.
    """
    most = max(n_ctx, MIN_TOKENS)
    length = 2 * most * PIECE_CHARACTERS
    while length < len(text):
        n_tokens = len(vocabulary.encode(text[:length], add_special))
        if n_tokens > 2 * most:
            raise ContextOverflow(n_ctx, n_tokens, is_counted=False)
        length *= 2
    return vocabulary.encode(text, add_special)
