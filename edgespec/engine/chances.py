"""Chances of guesses to be accepted, learnt from those that the text went through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.outcome import Reached


@dataclass(frozen=True, slots=True)
class Chances:
    """Hit rates of guesses after accepted nodes."""

    sure: ClassVar[float] = 0.9
    fade: ClassVar[float] = 0.95

    hits: tuple[float, float] = (0.0, 0.0)
    """After nodes that were not sure, and after sure ones."""
    tries: tuple[float, float] = (0.0, 0.0)
    claimed: float = 0.0
    """Sum of the confidences that all of them had."""

    def with_reached(self, reached: Reached) -> Chances:
        kind, kept = int(reached.is_sure), self.faded(self.fade)
        hits, tries = list(kept.hits), list(kept.tries)
        hits[kind] += reached.was_right
        tries[kind] += 1
        return Chances(tuple(hits), tuple(tries), kept.claimed + reached.claimed)  # type: ignore[arg-type]

    def with_honesty(self, hits: float, claimed: float) -> Chances:
        """The chances after so many hits where so many were claimed, after nodes of any kind."""
        (h0, h1), (t0, t1) = self.hits, self.tries
        return Chances((h0 + hits, h1), (t0 + claimed, t1), self.claimed + claimed)

    def faded(self, kept: float) -> Chances:
        (h0, h1), (t0, t1) = self.hits, self.tries
        return Chances((kept * h0, kept * h1), (kept * t0, kept * t1), kept * self.claimed)

    @property
    def honesty(self) -> float:
        """Ratio of hits to claimed tokens; 1 before anything was seen."""
        return (sum(self.hits) + 1) / (self.claimed + 1)

    @property
    def proof(self) -> float:
        """Share of the honesty that was observed; 0 before anything was seen."""
        return sum(self.hits) / (sum(self.hits) + 1)

    def line(self, confidence: float, length: int) -> list[float]:
        """Chances of 1, 2, ... nodes in a line below a node of this confidence, if it stands."""
        chances, stands = [], 1.0
        for _ in range(length):
            confidence = self._next(confidence)
            stands *= confidence
            chances.append(stands)
        return chances

    def _next(self, confidence: float) -> float:
        kind = int(confidence >= self.sure)
        usual = (sum(self.hits) + 1.8) / (sum(self.tries) + 2)
        return (self.hits[kind] + usual) / (self.tries[kind] + 1)
