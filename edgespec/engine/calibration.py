"""Makes the draft's confidences honest: what the draft calls 0.8 shall stand four times in five.

A value that is shown what the draft offered and what the target picked, and answers with its
successor. It knows probabilities; no tree, no model and no rule that uses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Calibration:
    """sigmoid(slope * logit(p) + offset): Platt's scaling, learnt while text is generated.

    Slope and offset are a Gaussian belief that every observation narrows (Spiegelhalter and
    Lauritzen, Networks 20, 1990: the Laplace approximation of logistic regression, one step at a
    time); old observations fade, since one text differs from the next. It starts as the identity.
    """

    fade: ClassVar[float] = 0.998
    """Kept of the belief's precision, an observed node."""
    slope_variance: ClassVar[float] = 0.3
    offset_variance: ClassVar[float] = 2.0
    """Of the belief before the first observation, and never more."""
    flattest: ClassVar[float] = 0.1
    """A slope below would turn the draft's order of guesses round."""

    slope: float = 1.0
    offset: float = 0.0
    covariance: tuple[float, float, float] = (slope_variance, 0.0, offset_variance)
    """Of slope; of slope and offset; of offset."""

    def confidence(self, p: float) -> float:
        """The probability that a guess stands to which the draft gave `p`, if its parent stands."""
        return _sigmoid(self.slope * _logit(p) + self.offset)

    def observe(self, offered: Iterable[tuple[float, bool]]) -> Calibration:
        """The belief after one node that stood: its guesses' `p`, and whether each was picked."""
        slope, offset = self.slope, self.offset
        ss, so, oo = self._faded()
        for p, was_picked in offered:
            x = _logit(p)
            q = _sigmoid(slope * x + offset)
            gain_s, gain_o = ss * x + so, so * x + oo
            information = max(q * (1.0 - q), 1e-6)
            spread = 1.0 / information + x * gain_s + gain_o
            ss -= gain_s * gain_s / spread
            so -= gain_s * gain_o / spread
            oo -= gain_o * gain_o / spread
            surprise = float(was_picked) - q
            slope = max(self.flattest, slope + (ss * x + so) * surprise)
            offset += (so * x + oo) * surprise
        return Calibration(slope, offset, (ss, so, oo))

    def _faded(self) -> tuple[float, float, float]:
        """A wider belief, at most as wide as the first one was."""
        ss, so, oo = (value / self.fade for value in self.covariance)
        if ss > self.slope_variance:
            ss, so = self.slope_variance, so * math.sqrt(self.slope_variance / ss)
        if oo > self.offset_variance:
            oo, so = self.offset_variance, so * math.sqrt(self.offset_variance / oo)
        return ss, so, oo


def _logit(p: float) -> float:
    p = min(max(p, 1e-6), 1.0 - 1e-6)
    return math.log(p / (1.0 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else 1.0 - 1.0 / (1.0 + math.exp(x))
