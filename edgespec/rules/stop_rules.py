"""Stop rules of the field: when to stop growing and let the target verify.

A stop rule is a frozen value: it is asked before every draft step, and `observe` returns its
successor after every round. It sees the tree and what was accepted, but calls no model and reads no
clock. By default there is none, and the round planner decides (see `decision`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgespec.settings.rule_names import FallbackName
from edgespec.tree import ROOT, TokenTree, common_length

Nodes = Sequence[int]


@dataclass(frozen=True, slots=True)
class RoundSoFar:
    """The state of a round before its pass."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Nodes that can grow, as their successors were not drafted yet."""
    draft_steps: int = 0
    draft_s: float = 0.0
    free_sources: Collection[str] = ()
    """Sources whose guesses cost almost nothing."""
    n_ends: int = 1
    """Number of nodes that grow in one step: of each text one that is nearly as probable as the
    best."""
    step_depth: int = 1
    """Number of consecutive nodes that a step adds."""

    @property
    def best_open(self) -> int | None:
        """The most probable node that can grow; None if there is none."""
        if not self.open_nodes:
            return None
        nodes = list(self.open_nodes)
        return nodes[int(self.tree.cumulative[nodes].argmax())]


class StopRule(ABC):
    """Decides when to verify. To add one, write a class and register it in `STOP_RULES`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, so_far: RoundSoFar) -> bool:
        """True if the target should verify now instead of another draft step."""

    def observe(self, tree: TokenTree, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        """The rule for the next round of any text.

        `nodes` of the tree were verified, those of `path` accepted, the root first; the target
        picked one of `tokens` after each of them.
        """
        return self


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

    def observe(self, tree: TokenTree, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        best = tree.best_branch(nodes)
        N_all, N_correct = int(tree.depth[best]), common_length(tree.branch_tokens(best), tokens)
        if N_all == 0:
            return self
        if N_correct == N_all:
            alpha = self.alpha * 0.5
        else:
            Tc = max(float(tree.cumulative[best]), self.lowest)
            alpha = self.alpha / Tc ** ((N_all - N_correct) / N_all)
        return replace(self, alpha=min(self.highest, max(self.lowest, alpha)))


@dataclass(frozen=True, slots=True)
class FixedLength(StopRule):
    """Verify when a branch has `length` tokens of the draft model, including those drafted during
    the last pass. Guesses without a model cost nothing and do not count."""

    name: ClassVar[str] = FallbackName.FIXED

    length: int = 8

    def fires(self, so_far: RoundSoFar) -> bool:
        tree = so_far.tree
        n_drafted = [0]  # by node; parents precede their children
        for node in range(1, len(tree)):
            is_drafted = tree.source[node] not in so_far.free_sources
            n_drafted.append(n_drafted[int(tree.parent[node])] + is_drafted)
        return max(n_drafted) >= self.length


@dataclass(frozen=True, slots=True)
class FullTree(StopRule):
    """Verify when the tree has its maximal size.

    It serves to measure the yield of trees of a given size, as it does not depend on time.
    """

    name: ClassVar[str] = FallbackName.FULL

    def fires(self, so_far: RoundSoFar) -> bool:
        return False


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

    def observe(self, tree: TokenTree, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        guessed = _guessed(tree, path, tokens)
        if not guessed or guessed[-1][1]:
            return self
        n_rejected = min(self.longest_mean, self.n_rejected + 1)
        step = (tree.entropy(guessed[-1][0]) - self.threshold) / n_rejected
        return replace(self, threshold=self.threshold + step, n_rejected=n_rejected)


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


@dataclass(frozen=True, slots=True)
class PredictedAcceptance(StopRule):
    """DISCO: Mamou et al., arXiv 2405.04304.

    Verify when the predicted chance of the newest guess falls below a threshold. Features are the
    paper's: how probable the guess is, the entropy there, the position in the branch. The paper
    trains a network beforehand; here a logistic regression is trained on what was accepted.
    """

    name: ClassVar[str] = FallbackName.DISCO
    pace: ClassVar[float] = 0.05
    """Step of the stochastic gradient."""

    threshold: float = 0.4
    weights: tuple[float, ...] = (0.5, 1.0, 0.0, 0.0)
    """Weights of one, the log odds of the guess, the entropy and the position."""

    def fires(self, so_far: RoundSoFar) -> bool:
        node, tree = so_far.best_open, so_far.tree
        if node is None or node == ROOT:
            return node is None
        unsure = tree.entropy(int(tree.parent[node]))
        position = int(tree.depth[node]) - 1
        return self.chance(_features(float(tree.confidence[node]), unsure, position)) < (
            self.threshold
        )

    def observe(self, tree: TokenTree, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        after = self
        for position, (node, was_right) in enumerate(_guessed(tree, path, tokens)):
            claimed = min(1.0, float(tree.confidence[tree.children(node)].sum()))
            features = _features(claimed, tree.entropy(node), position)
            missed = was_right - after.chance(features)
            weights = zip(after.weights, features, strict=True)
            after = replace(after, weights=tuple(w + self.pace * missed * x for w, x in weights))
        return after

    def chance(self, features: Sequence[float]) -> float:
        """Predicted probability that a guess is accepted."""
        total = sum(w * x for w, x in zip(self.weights, features, strict=True))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


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


STOP_RULES: dict[str, type[StopRule]] = {
    rule.name: rule
    for rule in (
        AdaptiveThreshold,
        FixedLength,
        FullTree,
        EntropyWindow,
        PredictedRejection,
        PredictedAcceptance,
        FallbackPolicy,
    )
}
"""Stop rules by name, which replace the round planner's choice."""


def _features(confidence: float, unsure: float, position: int) -> tuple[float, ...]:
    p = min(max(confidence, 1e-3), 1 - 1e-3)
    return (1.0, math.log(p / (1 - p)), unsure, position / 8)


def _guessed(tree: TokenTree, path: Nodes, tokens: Sequence[int]) -> list[tuple[int, bool]]:
    """Nodes of the accepted path that had guesses below them, each with true if one was right."""
    return [
        (node, tree.child(node, token) is not None)
        for node, token in zip(path, tokens, strict=True)
        if tree.children(node)
    ]
