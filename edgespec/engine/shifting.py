"""Context shift: which tokens remain when the context is full. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_TOKENS = 4
"""First tokens that always remain, as attention sinks (StreamingLLM, arXiv 2309.17453)."""


@dataclass(frozen=True, slots=True)
class ContextShift:
    """llama.cpp's rule for a full context: keeps the first tokens and the latest half of the
    others."""

    n_keep: int = 0
    """Number of first tokens that remain; -1 keeps the prompt."""

    def left(self, held: Sequence[int], n_prompt: int) -> tuple[int, ...]:
        """The tokens of `held` that remain; the prompt is its first `n_prompt` tokens."""
        n_keep = max(FIRST_TOKENS, n_prompt if self.n_keep < 0 else self.n_keep)
        n_keep = max(0, min(n_keep, len(held) - 1 - FIRST_TOKENS))
        n_dropped = (len(held) - n_keep) // 2
        return (*held[:n_keep], *held[n_keep + n_dropped :])
