"""Correction of the mixture's probability where several sources name the same token first.

A value that is shown whether what they agreed on stood, and answers with its successor. It knows
no sources, only how many of them agreed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple


class LogOdds(NamedTuple):
    """A Gaussian belief in what to add to the mixture's log-odds."""

    offset: float
    precision: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """P(token) = sigmoid(logit(mixture) + offset), by how many sources named the token first.

    A mixture lies between what its sources say, though each one's word speaks for the others'. The
    offset is learnt from every node that stood where sources agreed, one Newton step each.
    """

    fade: ClassVar[float] = 0.998
    prior: ClassVar[LogOdds] = LogOdds(1.0, 0.3)
    most_recalled: ClassVar[float] = 5.0
    """A precision, of what another run learnt."""
    largest: ClassVar[float] = 4.0

    seen: Mapping[str, LogOdds] = field(default_factory=dict)

    def of(self, n_sources: int, mixture: float) -> float:
        """The chance of what so many agree on, which their mixture gives `mixture`."""
        return sigmoid(logit(mixture) + self._seen(n_sources).offset)

    def observe(self, n_sources: int, mixture: float, stood: bool) -> Agreement:
        believed = self._seen(n_sources)
        chance = sigmoid(logit(mixture) + believed.offset)
        precision = self.fade * believed.precision + max(chance * (1.0 - chance), 1e-3)
        step = max(-1.0, min(1.0, (stood - chance) / precision))
        offset = max(-self.largest, min(self.largest, believed.offset + step))
        return Agreement({**self.seen, _name(n_sources): LogOdds(offset, precision)})

    def numbers(self) -> dict[str, float]:
        return {
            f"{name} {what}": value
            for name, believed in self.seen.items()
            for what, value in believed._asdict().items()
        }

    def recalled(self, numbers: Mapping[str, float]) -> Agreement:
        seen = dict(self.seen)
        for n_sources in range(2, 10):
            name = _name(n_sources)
            offset = numbers.get(f"{name} offset", math.inf)
            precision = min(self.most_recalled, numbers.get(f"{name} precision", 0.0))
            if abs(offset) <= self.largest and precision >= self.prior.precision:
                seen[name] = LogOdds(offset, precision)
        return Agreement(seen)

    def _seen(self, n_sources: int) -> LogOdds:
        return self.seen.get(_name(n_sources), self.prior)


def _name(n_sources: int) -> str:
    return f"{n_sources} agree"


def logit(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return math.log(p / (1.0 - p))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else 1.0 - 1.0 / (1.0 + math.exp(x))
