"""HSDDW's dynamic window: the draft stops when its entropy is high."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName
from edgespec.tree import ROOT


@dataclass(frozen=True, slots=True)
class EntropyWindow(StopRule):
    """HSDDW: Syu and Lee, Findings of NAACL 2025, pages 8260 to 8273.

    Verify when the entropy of the draft's distribution of the newest token exceeds a threshold, the
    mean entropy of rejected guesses so far. The paper's hierarchy of three models is not included.
    """

    name: ClassVar[str] = FallbackName.HSDDW

    threshold: float = 1.0
    """Threshold in nats."""
    n_rejected: float = 1.0
    """Number of rejections in the mean, including an assumed first one."""
    longest_mean: ClassVar[float] = 50.0

    def fires(self, so_far: RoundSoFar) -> bool:
        node = so_far.best_open
        if node is None or node == ROOT:
            return node is None
        return so_far.tree.entropy(int(so_far.tree.parent[node])) > self.threshold

    def observe(self, outcome: RoundOutcome) -> Self:
        if not outcome.path_nodes or outcome.path_nodes[-1].was_right:
            return self
        n_rejected = min(self.longest_mean, self.n_rejected + 1)
        step = (outcome.path_nodes[-1].entropy - self.threshold) / n_rejected
        return replace(self, threshold=self.threshold + step, n_rejected=n_rejected)
