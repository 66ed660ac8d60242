"""BiLD's fallback policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName


@dataclass(frozen=True, slots=True)
class FallbackPolicy(StopRule):
    """Big Little Decoder: Kim et al., arXiv 2302.07863, section 3.3.

    Verify when the draft's probability of its newest token is below a threshold. It belongs to the
    acceptance rule of the same name.
    """

    name: ClassVar[str] = FallbackName.BILD

    threshold: float = 0.6

    def fires(self, so_far: RoundSoFar) -> bool:
        node = so_far.best_open
        return node is None or bool(so_far.tree.probability[node] < self.threshold)
