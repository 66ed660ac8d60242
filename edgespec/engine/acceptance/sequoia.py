"""Rejection sampling in several steps, on a tree of guesses drawn without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgespec.engine.acceptance.rule import DrawnGuesses, Growth, drawn, leftover
from edgespec.engine.filters import Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName


class WithoutReplacement(DrawnGuesses):
    """Sequoia: Chen et al., arXiv 2402.12374, algorithm 2.

    Like SpecInfer's, but guesses after a node are distinct: a rejected one is removed from q, from
    which the next one was drawn.
    """

    name: ClassVar[str] = AcceptanceName.SEQUOIA
    growth: ClassVar[Growth | None] = Growth(width=8, with_replacement=False)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        for guess in guesses:
            if sampler.uniform() * q[guess] < p[guess]:
                return guess
            p = leftover(p, q)
            q = without(q, guess)
        return drawn(p, sampler)


def without(q: Probabilities, guess: int) -> Probabilities:
    """The distribution of the next draw after `guess`; all zeros if there is no other token."""
    rest = q.copy()
    rest[guess] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest
