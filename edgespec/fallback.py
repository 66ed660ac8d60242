"""Fallback rules: when to stop growing and let the target verify.

Values that are asked before every draft step and answer every round with their successor. They
see the tree, measured costs and what was accepted; they call no model and read no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.tally import RoundOutcome
from edgespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Growing:
    """A round as far as it has grown."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Ends that can grow: nodes whose successors the draft has not been asked for."""
    draft_steps: int = 0
    draft_s: float = 0.0


class Fallback(ABC):
    """Decides when to verify. To add one, write a frozen class and register it in `FALLBACKS`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, growing: Growing) -> bool:
        """Whether to verify now rather than draft one step more."""

    def observe(self, outcome: RoundOutcome) -> Self:
        """The rule for the next round."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveThreshold(Fallback):
    """LLMCad's rule (Xu et al., arXiv 2309.04255): verify when max_i C_i falls below alpha.

    A best branch that was right throughout halves alpha, so that drafts get longer; otherwise
    alpha is divided by Tc ** ((N_all - N_correct) / N_all). Both ends are clamped: alpha must stay
    below the root's confidence of 1, or nothing would ever be drafted and alpha never move again;
    below 1e-4 there is nothing to gain, and a long way to come back from.
    """

    name: ClassVar[str] = "llmcad"
    lowest: ClassVar[float] = 1e-4
    highest: ClassVar[float] = 0.9

    alpha: float = 0.01

    def fires(self, growing: Growing) -> bool:
        C = growing.tree.cumulative[list(growing.open_nodes)]
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


@dataclass(frozen=True, slots=True)
class FixedLength(Fallback):
    """Verify when the deepest branch has `length` tokens, drafted now or beside the last pass."""

    name: ClassVar[str] = "fixed"

    length: int = 8

    def fires(self, growing: Growing) -> bool:
        return int(growing.tree.depth[: len(growing.tree)].max()) >= self.length


FALLBACKS: dict[str, type[Fallback]] = {
    rule.name: rule for rule in (AdaptiveThreshold, FixedLength)
}
