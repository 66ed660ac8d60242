"""Pacers choose which nodes the tree grows at next. The target verifies the most probable ones.

Pure functions of a tree and its limits; they call no model. The ledger decides when to stop
growing, unless a pacer finds nothing to extend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.pool import Pool

Nodes = NDArray[np.int64]
"""Indices of nodes in a pool."""
FLOOR = 0.01
"""Least cumulative confidence of a node: verifying a less probable one does not pay."""
BATCH = 4
"""Most nodes of a text that are extended in one step."""
BRANCH_ABOVE = 0.3
"""Confidence above which a guess opens a branch by LLMCad's rule."""


class Limits(NamedTuple):
    """Limits of a verified tree; the root counts as a node of depth 0."""

    max_nodes: int
    max_branches: int
    max_depth: int
    """Most guesses in one branch."""


def before_pass(
    limits: Limits, n_free: int, room: int, n_others: int = 0, are_lines: bool = False
) -> Limits:
    """Limits of a tree before its pass, which `n_others` share, with `n_free` tokens left in the
    context and at most `room` tokens left in the text, which also bound the depth; `are_lines` if
    the target computes each branch as a sequence of its own."""
    max_nodes, max_branches, max_depth = limits
    if are_lines:  # each sequence may follow the accepted tokens of another one
        max_branches = max(1, min(max_branches, n_free // (1 + 2 * max_depth)))
    return Limits(min(max_nodes - n_others, n_free), max_branches, min(max_depth, room - 1))


class Guess(NamedTuple):
    """A candidate for the token after a node."""

    token: int
    confidence: float
    """Calibrated probability that it is accepted if the node is, from all sources."""
    probability: float
    """The source's own share of the token: softmax of its scores, noise included."""
    source: str
    """Name of the source."""


def most_probable(
    pool: Pool, limits: Mapping[int, Limits], max_nodes: int, max_branches: int
) -> list[tuple[int, int]]:
    """The roots and the most probable other nodes within the `limits` of each text, by slot, and of
    all together, best first.

    Cumulative confidence does not increase from parent to child, so the best nodes form trees, and
    these maximise the expected number of accepted tokens. Each node comes with the number of rows
    if all nodes up to it are computed as one sequence per branch, padded to the longest. The first
    branch of each tree does not count towards `max_branches`.
    """
    texts = [*limits]
    nodes = pool.alive(*texts)
    found = [(pool.root[text], n) for n, text in enumerate(texts, 1)]
    selected, extended = {node for node, _ in found}, set[int]()
    n_selected, more_branches = dict.fromkeys(texts, 1), dict.fromkeys(texts, 0)
    n_branches, longest = 1, 1
    ranked = nodes[np.argsort(-pool.cumulative[nodes], kind="stable")]
    columns = (column[ranked].tolist() for column in (pool.text, pool.parent, pool.depth))
    for node, text, parent, depth in zip(ranked.tolist(), *columns, strict=True):
        its_limits = limits[text]
        if parent not in selected or depth > its_limits.max_depth:
            continue
        if len(found) >= max_nodes:
            break
        if n_selected[text] == its_limits.max_nodes:
            continue
        if parent in extended:
            if n_branches == max_branches or 1 + more_branches[text] == its_limits.max_branches:
                continue
            n_branches += 1
            more_branches[text] += 1
        extended.add(parent)
        selected.add(node)
        n_selected[text] += 1
        longest = max(longest, 1 + depth)
        found.append((node, n_branches * longest))
    return found


class Pacer(NamedTuple):
    """One rule of growth."""

    children: Callable[[Pool, int, Sequence[Guess]], Sequence[Guess]]
    """The guesses, best first, that become children of a node."""
    extend: Callable[[Pool, Nodes, Sequence[int], int, int, float], list[int]]
    """The open nodes after which a source guesses in its next step; none to stop growing.

    Its arguments are the nodes of some trees, those of them after which the source has not guessed
    yet, at least one, the most nodes of a pass, the number of trees, and the price of a further
    node of a step relative to the first.
    """


def likely_children(pool: Pool, node: int, guesses: Sequence[Guess]) -> Sequence[Guess]:
    """The guesses that are probable enough to be verified."""
    C = float(pool.cumulative[node])
    return [guess for guess in guesses if C * guess.confidence >= FLOOR]


def best_open(
    pool: Pool, nodes: Nodes, open_nodes: Sequence[int], max_nodes: int, n_texts: int, share: float
) -> list[int]:
    """The open nodes with the highest cumulative confidence, those that tell more a second than the
    best one alone: a further node of a step takes a `share` of its time.

    For a given number of nodes this maximises the expected number of accepted tokens. There are
    none if no open node can have a child among the best `max_nodes`.
    """
    ends = np.asarray(open_nodes)
    C = pool.cumulative[ends]
    if len(nodes) >= max_nodes:
        worst_kept = np.sort(pool.cumulative[nodes])[-max_nodes]
        ends, C = ends[worst_kept < C], C[worst_kept < C]
    if not ends.size:
        return []
    best_first = np.argsort(-C, kind="stable")[: BATCH * n_texts]
    peers = best_first[C[best_first] >= share * C[best_first[0]]]
    return [int(node) for node in np.sort(ends[peers])]


def llmcad_children(pool: Pool, node: int, guesses: Sequence[Guess]) -> Sequence[Guess]:
    """The best guess, and every other one that opens a branch."""
    return [*guesses[:1], *(guess for guess in guesses[1:] if guess.confidence > BRANCH_ABOVE)]


def furthest_behind(
    pool: Pool, nodes: Nodes, open_nodes: Sequence[int], max_nodes: int, n_texts: int, _: float
) -> list[int]:
    """LLMCad's fair shares (Xu et al., arXiv 2309.04255): the end of the branch that lacks most.

    The fair share of branch i, with cumulative confidence C_i and length T_i, is M * C_i / sum(C)
    of the tree's M tokens; the branch with the largest deficit M * C_i / sum(C) - T_i grows.
    """
    if len(nodes) >= max_nodes:
        return []
    ends = np.asarray(open_nodes)
    C, T = pool.cumulative[ends], pool.depth[ends]
    total_C = pool.cumulative[pool.leaves(nodes.tolist())].sum()
    share = (len(nodes) - n_texts) * C / max(total_C, 1e-9)
    end = int(ends[np.argmax(share - T)])
    while int(pool.parent[end]) in open_nodes:  # lookups hang whole branches
        end = int(pool.parent[end])
    return [end]


PACERS: dict[str, Pacer] = {
    "best-first": Pacer(likely_children, best_open),
    "llmcad": Pacer(llmcad_children, furthest_behind),
}
