"""Chances of guesses to be accepted, learnt from those that the text went through."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    own_hits: float = 0.0
    """Hits in the text at work: those of other texts, and of its prompt, prove nothing about it."""

    def with_reached(self, reached: Reached) -> Chances:
        kind, kept = int(reached.is_sure), self.faded(self.fade)
        hits, tries = list(kept.hits), list(kept.tries)
        hits[kind] += reached.was_right
        tries[kind] += 1
        return Chances(
            (hits[0], hits[1]),
            (tries[0], tries[1]),
            kept.claimed + reached.claimed,
            kept.own_hits + reached.was_right,
        )

    def with_honesty(self, hits: float, claimed: float) -> Chances:
        """The chances after so many hits where so many were claimed, after nodes of any kind."""
        (h0, h1), (t0, t1) = self.hits, self.tries
        tries = t0 + claimed, t1
        return Chances((h0 + hits, h1), tries, self.claimed + claimed, self.own_hits)

    def for_another_text(self) -> Chances:
        """The chances where a text begins, which has shown nothing yet."""
        return replace(self, own_hits=0.0)

    def faded(self, kept: float) -> Chances:
        (h0, h1), (t0, t1) = self.hits, self.tries
        hits, tries = (kept * h0, kept * h1), (kept * t0, kept * t1)
        return Chances(hits, tries, kept * self.claimed, kept * self.own_hits)

    @property
    def honesty(self) -> float:
        """Ratio of hits to claimed tokens; 1 before anything was seen."""
        return (sum(self.hits) + 1) / (self.claimed + 1)

    @property
    def proof(self) -> float:
        """Share of the hit rates that the text at work has shown itself; 0 before its first hit."""
        return self.own_hits / (self.own_hits + 1)

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
