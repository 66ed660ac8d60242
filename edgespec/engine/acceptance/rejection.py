"""Rejection sampling on a line: the rule of the first papers on speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgespec.engine.acceptance.rule import DrawnGuesses, drawn, leftover
from edgespec.engine.filters import Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName


class RejectionSampling(DrawnGuesses):
    """Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.

    A guess is accepted with probability min(1, p / q); after a rejection, the token is drawn from
    norm(max(0, p - q)).
    """

    name: ClassVar[str] = AcceptanceName.REJECTION

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        guess = guesses[0]
        if sampler.uniform() * q[guess] < p[guess]:
            return guess
        return drawn(leftover(p, q), sampler)
