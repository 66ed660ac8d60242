"""Chances of guesses to be accepted, learnt from those that the text went through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edgespec.engine.outcome import Reached


@dataclass(frozen=True, slots=True)
class Chances:
    """Hit rates of first guesses after accepted nodes, and how many of all guesses stood."""

    sure: ClassVar[float] = 0.9
    fade: ClassVar[float] = 0.95

    hits: tuple[float, float] = (0.0, 0.0)
    """Nodes after which the first guess was right: those that were not sure, and sure ones."""
    wide_hits: tuple[float, float] = (0.0, 0.0)
    """Nodes after which any of the guesses was right."""
    tries: tuple[float, float] = (0.0, 0.0)
    claimed: float = 0.0
    """Sum of the confidences of all guesses after those nodes."""
    own_hits: float = 0.0
    """Hits in the text at work: those of other texts, and of its prompt, prove nothing about it."""

    def with_reached(self, reached: Reached) -> Chances:
        kind, kept = int(reached.is_sure), self.faded(self.fade)
        hits, wide_hits, tries = list(kept.hits), list(kept.wide_hits), list(kept.tries)
        hits[kind] += reached.was_first
        wide_hits[kind] += reached.was_right
        tries[kind] += 1
        return Chances(
            (hits[0], hits[1]),
            (wide_hits[0], wide_hits[1]),
            (tries[0], tries[1]),
            kept.claimed + reached.claimed,
            kept.own_hits + reached.was_first,
        )

    def with_honesty(self, right: float, claimed: float) -> Chances:
        """The chances after so many right guesses where so many were claimed, after nodes of any
        kind."""
        (h0, h1), (w0, w1), (t0, t1) = self.hits, self.wide_hits, self.tries
        return replace(
            self,
            hits=(h0 + right, h1),
            wide_hits=(w0 + right, w1),
            tries=(t0 + claimed, t1),
            claimed=self.claimed + claimed,
        )

    def for_another_text(self) -> Chances:
        """The chances where a text begins, which has shown nothing yet."""
        return replace(self, own_hits=0.0)

    def faded(self, kept: float) -> Chances:
        (h0, h1), (w0, w1), (t0, t1) = self.hits, self.wide_hits, self.tries
        return Chances(
            (kept * h0, kept * h1),
            (kept * w0, kept * w1),
            (kept * t0, kept * t1),
            kept * self.claimed,
            kept * self.own_hits,
        )

    @property
    def honesty(self) -> float:
        """Ratio of right guesses to claimed ones; 1 before anything was seen."""
        return (sum(self.wide_hits) + 1) / (self.claimed + 1)

    @property
    def proof(self) -> float:
        """Share of the hit rates that the text at work has shown itself; 0 before its first hit."""
        return self.own_hits / (self.own_hits + 1)

    def line(self, confidence: float, length: int, is_wide: bool = False) -> list[float]:
        """Chances that the text goes 1, 2, ... nodes down below a node of this confidence, if it
        stands: where each node is the first guess, or one of all (`is_wide`)."""
        hits = self.wide_hits if is_wide else self.hits
        usual = (sum(hits) + 1.8) / (sum(self.tries) + 2)
        chances, stands = [], 1.0
        for _ in range(length):
            kind = int(confidence >= self.sure)
            confidence = (hits[kind] + usual) / (self.tries[kind] + 1)
            stands *= confidence
            chances.append(stands)
        return chances
