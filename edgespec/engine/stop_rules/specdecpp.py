"""SpecDec++'s rule: verify when a rejection has become probable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName


@dataclass(frozen=True, slots=True)
class PredictedRejection(StopRule):
    """SpecDec++: Huang et al., arXiv 2405.19715.

    Verify when the probability that the branch has a rejected token exceeds a threshold. Instead of
    the paper's trained head, the calibrated confidence predicts the acceptance of each token.
    """

    name: ClassVar[str] = FallbackName.SPECDECPP

    threshold: float = 0.7

    def fires(self, so_far: RoundSoFar) -> bool:
        node = so_far.best_open
        return node is None or bool(1 - so_far.tree.cumulative[node] > self.threshold)
