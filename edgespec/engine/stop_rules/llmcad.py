"""LLMCad's adaptive threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName


@dataclass(frozen=True, slots=True)
class AdaptiveThreshold(StopRule):
    """LLMCad's rule (Xu et al., arXiv 2309.04255): verify when max_i C_i falls below alpha.

    If the best branch was completely right, alpha is halved, so that drafts get longer; otherwise
    alpha is divided by Tc ** ((N_all - N_correct) / N_all). It is clamped at both ends: it must
    stay below the root's confidence of 1, or nothing would be drafted and alpha never change again;
    below 1e-4 there is nothing to gain, and recovery would take long.
    """

    name: ClassVar[str] = FallbackName.LLMCAD
    lowest: ClassVar[float] = 1e-4
    highest: ClassVar[float] = 0.9

    alpha: float = 0.01

    def fires(self, so_far: RoundSoFar) -> bool:
        C = so_far.tree.cumulative[list(so_far.open_nodes)]
        return not C.size or float(C.max()) < self.alpha

    def observe(self, outcome: RoundOutcome) -> Self:
        N_all, N_correct = outcome.best_length, outcome.best_correct
        if N_all == 0:
            return self
        if N_correct == N_all:
            alpha = self.alpha * 0.5
        else:
            Tc = max(outcome.best_confidence, self.lowest)
            alpha = self.alpha / Tc ** ((N_all - N_correct) / N_all)
        return replace(self, alpha=min(self.highest, max(self.lowest, alpha)))
