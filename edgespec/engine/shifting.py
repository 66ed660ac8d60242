"""The text that goes on past the context's end: its beginning and its latest part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_TOKENS = 4
"""First tokens that always stay: models lean on them whatever they say."""


@dataclass(frozen=True, slots=True)
class ContextShift:
    """The rule of what stays when the context is full, llama.cpp's: the first tokens, and the
    latest half of the others."""

    n_keep: int = 0
    """First tokens that stay; -1 keeps the prompt."""

    def left(self, held: Sequence[int], n_prompt: int) -> tuple[int, ...]:
        """The tokens of `held` that stay; it began with a prompt of `n_prompt`."""
        n_keep = max(FIRST_TOKENS, n_prompt if self.n_keep < 0 else self.n_keep)
        n_keep = max(0, min(n_keep, len(held) - 1 - FIRST_TOKENS))
        n_dropped = (len(held) - n_keep) // 2
        return (*held[:n_keep], *held[n_keep + n_dropped :])
