"""Pacers choose which nodes the tree grows at next. The target verifies the most probable ones.

Pure functions of a tree and its limits; they call no model. The round planner decides when to stop
growing, unless a pacer finds nothing to extend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.rules.tree_limits import Limits
from edgespec.settings.rule_names import PacerName
from edgespec.tree import ROOT, TokenTree


class Guess(NamedTuple):
    """A candidate for the token after a node."""

    token: int
    confidence: float
    """Calibrated probability that it is accepted if the node is, from all sources."""
    probability: float
    """The drafter's own share of the token: softmax of its scores, noise included."""
    source: str
    """Name of the drafter."""


def nodes_to_verify(
    trees: Sequence[TokenTree], limits: Sequence[Limits], max_nodes: int, max_branches: int
) -> list[list[int]]:
    """The nodes of each tree that `most_probable` finds, ascending."""
    found: list[list[int]] = [[] for _ in trees]
    for n, node, _ in most_probable(trees, limits, max_nodes, max_branches):
        found[n].append(node)
    return [sorted(nodes) for nodes in found]


def most_probable(
    trees: Sequence[TokenTree], limits: Sequence[Limits], max_nodes: int, max_branches: int
) -> list[tuple[int, int, int]]:
    """The roots and the most probable other nodes within the limits of each tree and of all
    together, best first.

    Cumulative confidence does not increase from parent to child, so the best nodes form trees, and
    these maximise the expected number of accepted tokens. Each node comes with the number of its
    tree, and with the number of rows if all nodes up to it are computed as one sequence per branch,
    padded to the longest. The first branch of each tree does not count towards `max_branches`.
    """
    begins: list[int] = []
    each: list[tuple[list[int], list[int], set[int], set[int]]] = []
    n_nodes = 0
    for tree in trees:
        begins.append(n_nodes)
        n_nodes += len(tree)
        parents, depths = tree.parent[: len(tree)].tolist(), tree.depth[: len(tree)].tolist()
        each.append((parents, depths, {ROOT}, set()))
    cumulative = np.concatenate([tree.cumulative[: len(tree)] for tree in trees])
    found = [(n, ROOT, 1) for n in range(len(trees))]
    more_branches, n_branches, longest = [0] * len(trees), 1, 1
    for place in np.argsort(-cumulative, kind="stable").tolist():
        n = bisect_right(begins, place) - 1
        node, its_limits = place - begins[n], limits[n]
        parents, depths, selected, extended = each[n]
        parent, depth = parents[node], depths[node]
        if parent not in selected or depth > its_limits.max_depth:
            continue
        if len(found) >= max_nodes:
            break
        if len(selected) == its_limits.max_nodes:
            continue
        if parent in extended:
            if n_branches == max_branches or 1 + more_branches[n] == its_limits.max_branches:
                continue
            n_branches += 1
            more_branches[n] += 1
        extended.add(parent)
        selected.add(node)
        longest = max(longest, 1 + depth)
        found.append((n, node, n_branches * longest))
    return found


@dataclass(frozen=True, slots=True)
class Pacer:
    """Best first: extends the open nodes with the highest cumulative confidence.

    For a given number of nodes this maximises the expected number of accepted tokens. It stops when
    no open node can have a child among the best `max_nodes`.
    """

    name: ClassVar[str] = PacerName.BEST_FIRST
    floor: ClassVar[float] = 0.01
    """Least cumulative confidence of a node: verifying a less probable one does not pay."""
    batch: ClassVar[int] = 4
    """Most nodes that are extended in one draft step."""
    batch_ratio: ClassVar[float] = 0.5
    """Least cumulative confidence, relative to the best open node, of nodes in its draft step."""

    width: int = 8
    """Most children of a node; with 1 the tree is a line."""

    def children(self, tree: TokenTree, node: int, guesses: Sequence[Guess]) -> Sequence[Guess]:
        """The guesses, best first, that become children of `node`."""
        C = float(tree.cumulative[node])
        return [guess for guess in guesses[: self.width] if C * guess.confidence >= self.floor]

    def extend(self, tree: TokenTree, open_nodes: Sequence[int], limits: Limits) -> list[int]:
        """The open nodes that the draft evaluates in the next step; none to stop growing.

        Open nodes are those whose successors were not drafted yet. Children of the returned nodes
        stay within `limits.max_depth`.
        """
        ends = _growing(tree, open_nodes, limits)
        C = tree.cumulative[ends]
        if len(tree) >= limits.max_nodes:
            worst_kept = np.sort(tree.cumulative[: len(tree)])[-limits.max_nodes]
            ends, C = ends[worst_kept < C], C[worst_kept < C]
        if not ends.size:
            return []
        best_first = np.argsort(-C, kind="stable")[: self.batch]
        peers = best_first[C[best_first] >= self.batch_ratio * C[best_first[0]]]
        chosen: list[int] = np.sort(ends[peers]).tolist()
        return chosen


class LLMCadPacer(Pacer):
    """LLMCad's fair shares (Xu et al., arXiv 2309.04255).

    The fair share of branch i, with cumulative confidence C_i and length T_i, is M * C_i / sum(C)
    of the tree's M tokens; the branch with the largest deficit M * C_i / sum(C) - T_i grows. Every
    guess with a confidence above 0.3 opens a branch.
    """

    name: ClassVar[str] = PacerName.LLMCAD
    branch_above: ClassVar[float] = 0.3

    def children(self, tree: TokenTree, node: int, guesses: Sequence[Guess]) -> Sequence[Guess]:
        others = guesses[1 : self.width]
        return [*guesses[:1], *(g for g in others if g.confidence > self.branch_above)]

    def extend(self, tree: TokenTree, open_nodes: Sequence[int], limits: Limits) -> list[int]:
        ends = _growing(tree, open_nodes, limits)
        if not ends.size or len(tree) >= limits.max_nodes:
            return []
        C, T = tree.cumulative[ends], tree.depth[ends]
        share = (len(tree) - 1) * C / max(tree.cumulative[tree.leaves()].sum(), 1e-9)
        return [int(ends[np.argmax(share - T)])]


PACERS: dict[str, type[Pacer]] = {pacer.name: pacer for pacer in (Pacer, LLMCadPacer)}


def _growing(tree: TokenTree, nodes: Sequence[int], limits: Limits) -> NDArray[np.int64]:
    """The subset of `nodes` that may have children."""
    found = np.asarray(nodes, np.int64)
    return found[tree.depth[found] < limits.max_depth]
