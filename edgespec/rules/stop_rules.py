"""Stop rules of the field: when to stop growing and let the target verify.

A stop rule is a frozen value: it is asked before every draft step, and `observe` returns its
successor after every round. It sees the tree and what was accepted, but calls no model and reads no
clock. By default there is none, and the ledger decides (`engine.ledger`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from edgespec.pool import Pool, common_length

Nodes = Sequence[int]


class StopRule:
    """Verify when the tree has its maximal size: the yield of such trees depends on no time."""

    def fires(self, pool: Pool, nodes: Nodes, ends: Nodes, free: Collection[str] = ()) -> bool:
        """True if the target should verify now instead of a draft step after `ends`, at least one.

        `nodes` are those of the texts in the pass, ascending. Guesses of `free` sources cost almost
        nothing.
        """
        return False

    def observe(self, pool: Pool, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        """The rule for the next round of any text.

        `nodes` of the tree were verified, those of `path` accepted, the root first; the target
        picked one of `tokens` after each of them.
        """
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveThreshold(StopRule):
    """LLMCad's rule (Xu et al., arXiv 2309.04255): verify when max_i C_i falls below alpha.

    If the best branch was completely right, alpha is halved, so that drafts get longer; otherwise
    it is divided by Tc ** ((N_all - N_correct) / N_all). It stays below the root's confidence of 1,
    or nothing would be drafted and alpha never change again.
    """

    lowest: ClassVar[float] = 1e-4
    highest: ClassVar[float] = 0.9

    alpha: float = 0.01

    def fires(self, pool: Pool, nodes: Nodes, ends: Nodes, free: Collection[str] = ()) -> bool:
        return float(pool.cumulative[ends].max()) < self.alpha

    def observe(self, pool: Pool, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        best = max(pool.leaves(nodes), key=lambda node: pool.cumulative[node])
        N_all, N_correct = int(pool.depth[best]), common_length(pool.branch_tokens(best), tokens)
        if N_all == 0:
            return self
        if N_correct == N_all:
            alpha = self.alpha * 0.5
        else:
            Tc = max(float(pool.cumulative[best]), self.lowest)
            alpha = self.alpha / Tc ** ((N_all - N_correct) / N_all)
        return replace(self, alpha=min(self.highest, max(self.lowest, alpha)))


@dataclass(frozen=True, slots=True)
class FixedLength(StopRule):
    """Verify when a branch has `length` tokens of the draft model, including those drafted during
    the last pass. Guesses without a model cost nothing and do not count."""

    length: int = 8

    def fires(self, pool: Pool, nodes: Nodes, ends: Nodes, free: Collection[str] = ()) -> bool:
        n_drafted: dict[int, int] = {}
        for node in nodes:  # parents precede their children
            parent = int(pool.parent[node])
            is_drafted = parent >= 0 and pool.source[node] not in free
            n_drafted[node] = n_drafted.get(parent, 0) + is_drafted
        return max(n_drafted.values()) >= self.length


@dataclass(frozen=True, slots=True)
class EntropyWindow(StopRule):
    """HSDDW: Syu and Lee, Findings of NAACL 2025, pages 8260 to 8273.

    Verify when the entropy of the draft's distribution of the newest token exceeds a threshold, the
    mean entropy of rejected guesses so far. The paper's hierarchy of three models is not included.
    """

    longest_mean: ClassVar[float] = 50.0

    threshold: float = 1.0
    """Threshold in nats."""
    n_rejected: float = 1.0
    """Number of rejections in the mean, including an assumed first one."""

    def fires(self, pool: Pool, nodes: Nodes, ends: Nodes, free: Collection[str] = ()) -> bool:
        newest = max(ends, key=lambda node: pool.cumulative[node])
        parent = int(pool.parent[newest])
        return parent >= 0 and entropy(pool, parent) > self.threshold

    def observe(self, pool: Pool, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Self:
        end = path[-1]
        if not pool.children(end) or pool.child(end, tokens[-1]) is not None:
            return self  # nothing was rejected
        n_rejected = min(self.longest_mean, self.n_rejected + 1)
        step = (entropy(pool, end) - self.threshold) / n_rejected
        return replace(self, threshold=self.threshold + step, n_rejected=n_rejected)


STOP_RULES: dict[str, type[StopRule]] = {
    "full": StopRule,
    "llmcad": AdaptiveThreshold,
    "fixed": FixedLength,
    "hsddw": EntropyWindow,
}
"""Stop rules by name, which replace the round planner's choice."""


def entropy(pool: Pool, node: int) -> float:
    """Entropy, in nats, of the source's own distribution after `node`; guesses that do not hang
    there count as one."""
    q = pool.probability[pool.children(node)]
    whole = np.append(q, max(0.0, 1.0 - float(q.sum())))
    whole = whole[whole > 0]
    return -float((whole * np.log(whole)).sum())
