"""Rejection sampling in several steps, on a tree of guesses drawn with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgespec.engine.acceptance.rule import DrawnGuesses, Growth, drawn, leftover
from edgespec.engine.filters import Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName


class MultiStepRejection(DrawnGuesses):
    """SpecInfer: Miao et al., arXiv 2305.09781, algorithm 2.

    The guesses after a node are tried one after the other. Each is accepted with probability
    min(1, p / q), where p is the target's distribution after the earlier rejections.
    """

    name: ClassVar[str] = AcceptanceName.SPECINFER
    growth: ClassVar[Growth | None] = Growth(width=8)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        for guess in guesses:
            if sampler.uniform() * q[guess] < p[guess]:
                return guess
            p = leftover(p, q)
        return drawn(p, sampler)
