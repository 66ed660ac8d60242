"""SpecTr's k-sequential selection among guesses drawn with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.rule import DrawnGuesses, Growth, drawn
from edgespec.engine.filters import Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName


class KSequential(DrawnGuesses):
    """SpecTr: Sun et al., arXiv 2310.15141, algorithm 2 (K-SEQ).

    Each of k guesses is accepted with probability min(1, p / (rho q)). rho is the smallest value
    with 1 - (1 - beta)^k <= rho beta, where beta = sum(min(q, p / rho)) is the acceptance
    probability of one guess. The rest is then a distribution for the token after k rejections, and
    the acceptance rate is within a factor of 1 - 1/e of the optimum.
    """

    name: ClassVar[str] = AcceptanceName.SPECTR
    growth: ClassVar[Growth | None] = Growth(width=8)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        k = len(guesses)
        inside = np.flatnonzero(q)
        rho = division(p[inside], q[inside], k)
        for guess in guesses:
            if sampler.uniform() * rho * q[guess] < p[guess]:
                return guess
        accepted = np.minimum(q, p / rho)
        beta = float(accepted.sum())
        if beta == 0:
            return drawn(p, sampler)
        return drawn(np.maximum(p - accepted * chance_of_any(beta, k) / beta, 0.0), sampler)


def chance_of_any(beta: float, k: int) -> float:
    """Probability that one of k guesses is accepted, if each is with probability beta."""
    return float(1 - (1 - beta) ** k)


def division(p: Probabilities, q: Probabilities, k: int) -> float:
    """The smallest rho in [1, k] for which the rest is a distribution, approximated from above."""
    low, high = 1.0, float(k)
    while high - low > 1e-9 * high:
        rho = (low + high) / 2
        beta = float(np.minimum(q, p / rho).sum())
        if chance_of_any(beta, k) <= rho * beta:
            high = rho
        else:
            low = rho
    return high
