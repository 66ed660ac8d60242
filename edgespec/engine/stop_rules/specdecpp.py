"""SpecDec++'s rule: verify when a rejection has become likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.config import FallbackName


@dataclass(frozen=True, slots=True)
class PredictedRejection(StopRule):
    """SpecDec++: Huang et al., arXiv 2405.19715.

    Verify when the chance that the branch has a rejected token exceeds a threshold. The paper
    trains a head that predicts the acceptance of each token; here that is the calibrated
    confidence, which is learnt while the pair works.
    """

    name: ClassVar[str] = FallbackName.SPECDECPP

    threshold: float = 0.7

    def fires(self, so_far: RoundSoFar) -> bool:
        node = so_far.best_open
        return node is None or bool(1 - so_far.tree.cumulative[node] > self.threshold)
