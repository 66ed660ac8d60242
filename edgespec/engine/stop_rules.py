"""Stop rules: when to stop growing and let the target verify, by LLMCad and others.

Values that are asked before every draft step and answer every round with their successor. They
see the tree and what was accepted; they call no model and read no clock. Without one of them the
round planner decides (see `decision`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.engine.outcome import RoundOutcome
from edgespec.settings.config import FallbackName
from edgespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class RoundSoFar:
    """A round before its pass."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Ends that can grow: nodes whose successors the draft has not been asked for."""
    draft_steps: int = 0
    draft_s: float = 0.0
    free_sources: Collection[str] = ()
    """Sources whose nodes cost next to nothing to guess."""


class StopRule(ABC):
    """Decides when to verify. To add one, write a frozen class and register it in `STOP_RULES`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, so_far: RoundSoFar) -> bool:
        """True if the target is to verify now, before another draft step."""

    def observe(self, outcome: RoundOutcome) -> Self:
        """The rule for the next round."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveThreshold(StopRule):
    """LLMCad's rule (Xu et al., arXiv 2309.04255): verify when max_i C_i falls below alpha.

    A best branch that was right throughout halves alpha, so that drafts get longer; otherwise
    alpha is divided by Tc ** ((N_all - N_correct) / N_all). Both ends are clamped: alpha must stay
    below the root's confidence of 1, or nothing would ever be drafted and alpha never move again;
    below 1e-4 there is nothing to gain, and a long way to come back from.
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


@dataclass(frozen=True, slots=True)
class FixedLength(StopRule):
    """Verify when the draft's part of a branch has `length` tokens, drafted now or beside the last
    pass: what was guessed without a model lengthens a branch for nothing."""

    name: ClassVar[str] = FallbackName.FIXED

    length: int = 8

    def fires(self, so_far: RoundSoFar) -> bool:
        tree = so_far.tree
        n_drafted = [0]  # parents stand before their children
        for node in range(1, len(tree)):
            is_drafted = tree.source[node] not in so_far.free_sources
            n_drafted.append(n_drafted[int(tree.parent[node])] + is_drafted)
        return max(n_drafted) >= self.length


@dataclass(frozen=True, slots=True)
class FullTree(StopRule):
    """Verify when no growth within the limits is of use: every pass gets as many nodes as it may.

    What a tree of a given size brings is measured with it, for it heeds no clock.
    """

    name: ClassVar[str] = FallbackName.FULL

    def fires(self, so_far: RoundSoFar) -> bool:
        return False


STOP_RULES: dict[str, type[StopRule]] = {
    rule.name: rule for rule in (AdaptiveThreshold, FixedLength, FullTree)
}
"""Stop rules by name, which can replace the round planner's own choice."""
