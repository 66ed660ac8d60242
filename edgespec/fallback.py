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


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds that a pass computes, as a line over its nodes: least squares, old passes fading."""

    weight: float = 0.0
    nodes: float = 0.0
    seconds: float = 0.0
    nodes_squared: float = 0.0
    nodes_seconds: float = 0.0

    def with_pass(self, n_nodes: int, seconds: float) -> PassCost:
        keep = 0.9
        return PassCost(
            keep * self.weight + 1,
            keep * self.nodes + n_nodes,
            keep * self.seconds + seconds,
            keep * self.nodes_squared + n_nodes * n_nodes,
            keep * self.nodes_seconds + n_nodes * seconds,
        )

    @property
    def per_node_s(self) -> float:
        """The line's slope; where all passes were alike, the share of a node, which is no less."""
        if not self.nodes:
            return 0.0
        share = self.seconds / self.nodes
        spread = self.weight * self.nodes_squared - self.nodes**2
        if spread < self.weight * self.weight:
            return share
        slope = (self.weight * self.nodes_seconds - self.nodes * self.seconds) / spread
        return min(max(slope, 0.0), share)


@dataclass(frozen=True, slots=True)
class MarginalRate(Fallback):
    """Verify when the next draft step brings fewer tokens a second than the round does on average.

    A step on the open node with the highest C brings about C tokens, corrected by how many of the
    tokens expected so far stood. It costs a draft step and the pass's seconds per added node. While
    passes wait for storage, nodes are hidden by the reads and cost nothing, so trees fill up; where
    the target computes all the time, they stay small. The optimum of (tokens / seconds) is where
    the marginal rate has fallen to the average one (Charnov's marginal value theorem, 1976).
    """

    name: ClassVar[str] = "marginal"
    stalled_share: ClassVar[float] = 0.05
    """A pass that waited for storage for more of its time hides the computation of a node."""
    nodes_per_step: ClassVar[float] = 2.0

    pass_s: float = 0.0
    """A recent pass; 0 before the first."""
    stall_s: float = 0.0
    step_s: float = 0.0
    cost: PassCost = PassCost()
    expected: float = 2.0
    stood: float = 2.0
    """Drafted tokens, expected by the draft and accepted: a fading sum each."""

    def fires(self, growing: Growing) -> bool:
        open_nodes = list(growing.open_nodes)
        if not open_nodes:
            return True
        if not self.pass_s:
            return False
        honesty = min(self.stood / self.expected, 1.0)
        tree = growing.tree
        C = tree.cumulative[: len(tree)]
        tokens = 1.0 + honesty * float(C[1:].sum())
        hidden = self.stall_s > self.stalled_share * self.pass_s
        node_s = 0.0 if hidden else self.cost.per_node_s
        round_s = growing.draft_s + self.pass_s
        step_s = growing.draft_s / growing.draft_steps if growing.draft_steps else self.step_s
        gained = honesty * float(tree.cumulative[open_nodes].max())
        return gained * round_s < tokens * (step_s + self.nodes_per_step * node_s)

    def observe(self, outcome: RoundOutcome) -> Self:
        fade = 0.9
        step_s = outcome.draft_s / outcome.draft_steps if outcome.draft_steps else self.step_s
        return replace(
            self,
            pass_s=outcome.pass_s,
            stall_s=outcome.stall_s,
            step_s=step_s,
            cost=self.cost.with_pass(1 + outcome.verified, outcome.pass_s - outcome.stall_s),
            expected=fade * self.expected + outcome.expected,
            stood=fade * self.stood + outcome.accepted,
        )


FALLBACKS: dict[str, type[Fallback]] = {
    rule.name: rule for rule in (MarginalRate, AdaptiveThreshold, FixedLength)
}
