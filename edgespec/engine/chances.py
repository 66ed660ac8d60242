"""Acceptance rates of guesses, learnt from the nodes of accepted paths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edgespec.engine.outcome import PathNode


@dataclass(frozen=True, slots=True)
class Chances:
    """Fading counts of accepted nodes and of right guesses after them.

    Pairs are (nodes of lower confidence, nodes of at least `high_confidence`).
    """

    high_confidence: ClassVar[float] = 0.9
    fade: ClassVar[float] = 0.95
    """Factor by which a new node reduces the weight of earlier ones."""

    hits: tuple[float, float] = (0.0, 0.0)
    """Nodes after which the most probable guess was right."""
    wide_hits: tuple[float, float] = (0.0, 0.0)
    """Nodes after which any guess was right."""
    tries: tuple[float, float] = (0.0, 0.0)
    """All nodes with guesses after them."""
    claimed: float = 0.0
    """Expected `wide_hits`: the sum of the confidences of all guesses after these nodes."""
    own_hits: float = 0.0
    """Hits in the current text, without its prompt."""

    def with_node(self, node: PathNode) -> Chances:
        """The counts after one more node of an accepted path."""
        kind, kept = int(node.is_sure), self.faded(self.fade)
        hits, wide_hits, tries = list(kept.hits), list(kept.wide_hits), list(kept.tries)
        hits[kind] += node.was_first
        wide_hits[kind] += node.was_right
        tries[kind] += 1
        return Chances(
            (hits[0], hits[1]),
            (wide_hits[0], wide_hits[1]),
            (tries[0], tries[1]),
            kept.claimed + node.claimed,
            kept.own_hits + node.was_first,
        )

    def with_calibration(self, right: float, claimed: float) -> Chances:
        """The counts after nodes at which `claimed` guesses were expected to be right and `right`
        were."""
        (h0, h1), (w0, w1), (t0, t1) = self.hits, self.wide_hits, self.tries
        return replace(
            self,
            hits=(h0 + right, h1),
            wide_hits=(w0 + right, w1),
            tries=(t0 + claimed, t1),
            claimed=self.claimed + claimed,
        )

    def for_another_text(self) -> Chances:
        """The counts at the start of a text."""
        return replace(self, own_hits=0.0)

    def faded(self, kept: float) -> Chances:
        """The counts, multiplied by `kept`."""
        (h0, h1), (w0, w1), (t0, t1) = self.hits, self.wide_hits, self.tries
        return Chances(
            (kept * h0, kept * h1),
            (kept * w0, kept * w1),
            (kept * t0, kept * t1),
            kept * self.claimed,
            kept * self.own_hits,
        )

    @property
    def calibration(self) -> float:
        """Ratio of right guesses to expected ones, (hits + 1) / (claimed + 1)."""
        return (sum(self.wide_hits) + 1) / (self.claimed + 1)

    @property
    def text_evidence(self) -> float:
        """Weight in [0, 1) of the hit rates as evidence about the current text: h / (h + 1) for h
        hits in it. Hits in other texts and in the prompt set expectations only."""
        return self.own_hits / (self.own_hits + 1)

    def line(self, confidence: float, length: int, is_wide: bool = False) -> list[float]:
        """Probabilities that at least 1, 2, ..., `length` guesses are accepted below an accepted
        node of this confidence: one guess for each token, or several (`is_wide`)."""
        hits = self.wide_hits if is_wide else self.hits
        usual = (sum(hits) + 1.8) / (sum(self.tries) + 2)
        chances, accepted = [], 1.0
        for _ in range(length):
            kind = int(confidence >= self.high_confidence)
            confidence = (hits[kind] + usual) / (self.tries[kind] + 1)
            accepted *= confidence
            chances.append(accepted)
        return chances
