"""A pool with the tree of one text, for tests of models and rules."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from edgespec.pool import Pool

ROOT = 0


class OneTree(Pool):
    """A pool with one tree, whose root is node 0."""

    def __init__(self, token: int, capacity: int = 256, first_key: int = 0) -> None:
        super().__init__(capacity)
        self.next_key = first_key
        self.plant(0, token)

    def __len__(self) -> int:
        return self.n

    def reroot(self, node: int) -> OneTree:
        """The tree below `node`; this one stays as it is."""
        tree = deepcopy(self)
        tree.follow(node)
        tree.pack()
        return tree


def line(tokens: Sequence[int]) -> tuple[OneTree, list[int]]:
    """A tree of one branch, and its nodes."""
    tree, nodes = OneTree(tokens[0]), [ROOT]
    for token in tokens[1:]:
        nodes.append(tree.add(nodes[-1], token, 0.9))
    return tree, nodes
