"""Limits of token trees over one target: in general, before a pass, and during one.

Knows no model and no rule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a verified tree; the root counts as a node of depth 0."""

    max_nodes: int
    max_branches: int
    max_depth: int
    """Most guesses in one branch."""
    computes_lines: bool = False
    """True if the target computes each branch as a sequence of its own, padded to the longest."""

    @property
    def tree_capacity(self) -> int:
        """Capacity of a tree: the nodes of a pass, and those drafted during it."""
        return 8 * self.max_nodes

    def before_pass(self, n_free: int, room: int, n_others: int = 0) -> Limits:
        """Limits of a tree before its pass, which `n_others` share, with `n_free` tokens left in
        the context and at most `room` tokens left in the text, which also bound the depth."""
        max_branches = self.max_branches
        if self.computes_lines:  # each sequence may follow the accepted tokens of another one
            max_branches = max(1, min(max_branches, n_free // (1 + 2 * self.max_depth)))
        max_nodes, max_depth = min(self.max_nodes - n_others, n_free), min(self.max_depth, room - 1)
        return Limits(max_nodes, max_branches, max_depth)

    def during_pass(self, room: int) -> Limits:
        """Limits of growth during a pass: the next round's depth below a path of full depth and the
        target's own token."""
        max_depth = min(2 * self.max_depth + 1, room - 1)
        return Limits(self.tree_capacity, self.max_branches, max_depth)
