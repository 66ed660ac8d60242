"""Fallback rules: when to stop growing and let the target verify.

Values that are asked before every draft step and answer every round with their successor. They
see the tree, measured costs and what was accepted; they call no model and read no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.pacer import EVERYTHING, Worth
from edgespec.engine.pass_cost import LONGEST_S, PassCost, within
from edgespec.settings.config import FallbackName
from edgespec.tree import TokenTree
from edgespec.values import ModelInfo, PassReport


@dataclass(frozen=True, slots=True)
class RoundSoFar:
    """A round before its pass."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Ends that can grow: nodes whose successors the draft has not been asked for."""
    draft_steps: int = 0
    draft_s: float = 0.0
    free_sources: Collection[str] = ()
    """Whose nodes cost next to nothing to guess."""


class Fallback(ABC):
    """Decides when to verify. To add one, write a frozen class and register it in `FALLBACKS`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, so_far: RoundSoFar) -> bool:
        """Whether to verify now rather than draft one step more."""

    def n_worth_verifying(self, so_far: RoundSoFar) -> int:
        """How many of the tree's nodes, the most probable first, the pass should verify."""
        return len(so_far.tree)

    def worth_growing(self) -> Worth:
        """Which nodes this round should grow, if guessing them costs nothing."""
        return EVERYTHING

    def observe(self, outcome: RoundOutcome) -> Self:
        """The rule for the next round."""
        return self

    def numbers(self) -> Numbers:
        """What was learnt of costs here: what `recalled` understands."""
        return {}

    def recalled(self, numbers: Numbers) -> Self:
        """This rule, gone on from where another run left off. What makes no sense is left out."""
        return self

    def observe_prompt(self, report: PassReport) -> Self:
        """The rule after a prompt was read, which says something of what passes cost."""
        return self

    def for_target(self, info: ModelInfo) -> Self:
        """The rule for passes of this model."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveThreshold(Fallback):
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
class FixedLength(Fallback):
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
class FullTree(Fallback):
    """Verify when no growth within the limits is of use: every pass gets as many nodes as it may.

    What a tree of a given size brings is measured with it, for it heeds no clock.
    """

    name: ClassVar[str] = FallbackName.FULL

    def fires(self, so_far: RoundSoFar) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class MarginalRate(Fallback):
    """Verify when the next draft step brings fewer tokens a second than the round does on average.

    A step on the open node with the highest C brings a token if that node stands and the draft's
    guesses after it are not all wrong, as often as they were of late. It costs a draft step and
    what one more node makes the pass longer: nothing while reads hide its computation, so trees
    fill up; where the target computes all the time, they stay small, and of a tree that is there
    (grown beside the last pass, say) only the best part is verified. The optimum of tokens a second
    is where the marginal rate has fallen to the average one (`theory.is_worth`).
    """

    name: ClassVar[str] = FallbackName.MARGINAL
    fade: ClassVar[float] = 0.95
    surely_worthless: ClassVar[float] = 0.5
    """Of the confidence that makes a node worth its computing: one that is less probable still is
    not grown for nothing. Other sources may yet think better of it, and rounds go better."""
    most_recalled: ClassVar[float] = 6.0
    """Tries, of what another run learnt: another text is soon more telling."""

    step_s: float = 0.0
    cost: PassCost = field(default_factory=PassCost)
    hits: float = 2.0
    tries: float = 3.0
    """Nodes that stood and had guesses after them; hits are those with a right one. Both fade."""
    tokens: float = 0.0
    spent_s: float = 0.0
    """Of rounds of late, drafting and passes."""

    def fires(self, so_far: RoundSoFar) -> bool:
        open_nodes = list(so_far.open_nodes)
        if not open_nodes:
            return True
        if not self.cost.is_known:
            return False
        # on the line of several nodes: that one node alone is cheaper is said at the end
        pass_s = self.cost.drafted_s(np.arange(1, len(so_far.tree) + 1))
        n_nodes, tokens, round_s = _best_pass(so_far, pass_s)
        step_s = so_far.draft_s / so_far.draft_steps if so_far.draft_steps else self.step_s
        added_s = step_s + self.cost.added_s(n_nodes)
        C = float(so_far.tree.cumulative[open_nodes].max())
        return not theory.is_worth(self.hits / self.tries * C, added_s, tokens, round_s)

    def n_worth_verifying(self, so_far: RoundSoFar) -> int:
        if not self.cost.is_known:
            return len(so_far.tree)
        return _best_pass(so_far, self.cost.seconds(np.arange(1, len(so_far.tree) + 1)))[0]

    def worth_growing(self) -> Worth:
        """To guess without a model takes time, too: of hundreds of nodes few are worth a pass."""
        if not self.spent_s or not self.cost.is_known:
            return EVERYTHING
        least = self.surely_worthless * self.cost.per_node_s * self.tokens / self.spent_s
        return Worth(self.cost.n_hidden, least)

    def for_target(self, info: ModelInfo) -> Self:
        return replace(self, cost=replace(self.cost, used_share=info.used_share))

    def observe_prompt(self, report: PassReport) -> Self:
        return replace(self, cost=self.cost.with_prompt(report))

    def observe(self, outcome: RoundOutcome) -> Self:
        fade = self.fade
        step_s = outcome.draft_s / outcome.draft_steps if outcome.draft_steps else self.step_s
        return replace(
            self,
            step_s=step_s,
            cost=self.cost.with_pass(
                1 + outcome.verified,
                outcome.pass_s,
                outcome.idle_s,
                outcome.choice_stall_s,
                outcome.read_s,
            ),
            hits=fade * self.hits + outcome.accepted,
            tries=fade * self.tries + outcome.accepted + outcome.missed,
            tokens=fade * self.tokens + outcome.n_tokens,
            spent_s=fade * self.spent_s + outcome.draft_s + outcome.pass_s,
        )

    def numbers(self) -> Numbers:
        learnt = {"step_s": self.step_s, "hit_rate": self.hits / self.tries, "tries": self.tries}
        return {**learnt, **self.cost.numbers()}

    def recalled(self, numbers: Numbers) -> Self:
        tries = within(numbers.get("tries", 0.0), 0.0, self.most_recalled)
        hit_rate = within(numbers.get("hit_rate", 0.0), 0.05, 1.0)
        known = replace(self, cost=self.cost.recalled(numbers))
        if tries < self.tries:
            return known
        step_s = within(numbers.get("step_s", 0.0), 0.0, LONGEST_S)
        return replace(known, step_s=step_s, hits=hit_rate * tries, tries=tries)


def _best_pass(so_far: RoundSoFar, pass_s: NDArray[np.float64]) -> tuple[int, float, float]:
    """The number of most probable nodes whose pass yields the most tokens a second, the tokens that
    it is expected to yield (one more than stand, as the root counts), and its round's seconds.

    `pass_s` are the seconds of passes over 1, 2, ... nodes."""
    n_nodes = len(so_far.tree)
    tokens = theory.tree_tokens(so_far.tree.cumulative[:n_nodes])
    round_s = so_far.draft_s + pass_s[:n_nodes]
    best = theory.best_round(tokens, round_s)
    return best + 1, float(tokens[best]), float(round_s[best])


FALLBACKS: dict[str, type[Fallback]] = {
    rule.name: rule for rule in (MarginalRate, AdaptiveThreshold, FixedLength, FullTree)
}
