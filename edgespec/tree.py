"""The token tree: the draft's guesses as flat arrays of fixed capacity.

It knows tokens, parents and confidences; it knows no model, no KV cache and no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UsageError

ROOT = 0
TARGET = "target"
"""The source of tokens that were not drafted: the root, and tokens picked by the target."""


class Draws(NamedTuple):
    """Guesses that were drawn at random, and the distribution that they were drawn from."""

    tokens: NDArray[np.int64]
    """Tokens that could be drawn, ascending."""
    probabilities: NDArray[np.float64]
    guesses: tuple[int, ...]
    """In the order drawn; one that was drawn twice is one node."""


class TokenTree:
    """Guesses that hang below the last committed token; node 0, the root, is that token.

    All arrays are `[capacity]`; entries below `len(tree)` are valid, and but for confidences never
    change. A parent has a lower index than its children, so ascending order is an evaluation order.
    Appending moves no memory and publishes a node last: one thread may append while others read
    nodes they know.

    token       int32    token id
    parent      int32    index of the parent, -1 for the root
    depth       int32    edges from the root
    confidence  float64  calibrated chance that this token is accepted if its parent is
    cumulative  float64  product of the confidences down from the root, whose own is 1
    probability float64  what the drafter itself gave the token
    source      str      name of its drafter (a list: strings are no array)
    key         int64    names a node for a whole generation; survives re-rooting
    """

    def __init__(self, root_token: int, capacity: int = 256, first_key: int = 0) -> None:
        if capacity < 1:
            raise UsageError(f"a token tree holds its root: capacity must be >= 1, not {capacity}")
        self.token: NDArray[np.int32] = np.empty(capacity, np.int32)
        self.parent: NDArray[np.int32] = np.empty(capacity, np.int32)
        self.depth: NDArray[np.int32] = np.empty(capacity, np.int32)
        self.confidence: NDArray[np.float64] = np.empty(capacity, np.float64)
        self.cumulative: NDArray[np.float64] = np.empty(capacity, np.float64)
        self.probability: NDArray[np.float64] = np.empty(capacity, np.float64)
        self.source: list[str] = [TARGET] * capacity
        self.key: NDArray[np.int64] = np.empty(capacity, np.int64)
        self.token[ROOT] = root_token
        self.parent[ROOT], self.depth[ROOT] = -1, 0
        self.confidence[ROOT] = self.cumulative[ROOT] = self.probability[ROOT] = 1.0
        self.key[ROOT] = first_key
        self.next_key = first_key + 1
        self.draws: dict[int, Draws] = {}
        """Draws of the children of each node; empty where the most probable ones were taken."""
        self._n_nodes = 1
        self._children: dict[tuple[int, int], int] = {}
        """Child of each parent by token."""

    def __len__(self) -> int:
        return self._n_nodes

    def __repr__(self) -> str:
        return f"<TokenTree {len(self)}/{self.capacity} nodes below token {int(self.token[ROOT])}>"

    @property
    def capacity(self) -> int:
        return len(self.token)

    @property
    def is_full(self) -> bool:
        return self._n_nodes == self.capacity

    def add(
        self,
        parent: int,
        token: int,
        confidence: float,
        probability: float | None = None,
        source: str = TARGET,
    ) -> int:
        """Append a child of `parent` and return its index.

        Without a `probability` of its own, the drafter gave the token its confidence. Raises
        UsageError if the tree is full, `parent` is unknown, `confidence` is no probability, or
        `parent` has a child with this token already.
        """
        self._check(parent)
        if self.is_full:
            raise UsageError(f"the token tree is full at {self.capacity} nodes")
        if not 0.0 <= confidence <= 1.0:
            raise UsageError(f"confidence is a probability, not {confidence}")
        if (parent, token) in self._children:
            raise UsageError(f"node {parent} has a child with token {token} already")
        node = self._n_nodes
        self.token[node] = token
        self.parent[node] = parent
        self.depth[node] = self.depth[parent] + 1
        self.confidence[node] = confidence
        self.cumulative[node] = self.cumulative[parent] * confidence
        self.probability[node] = confidence if probability is None else probability
        self.source[node] = source
        self.key[node] = self.next_key
        self._children[parent, token] = node
        self.next_key += 1
        self._n_nodes = node + 1
        return node

    def entropy(self, node: int) -> float:
        """Entropy, in nats, of the drafter's own distribution after `node`; guesses that do not
        hang there count as one."""
        q = self.probability[self.children(node)]
        whole = np.append(q, max(0.0, 1.0 - float(q.sum())))
        whole = whole[whole > 0]
        return -float((whole * np.log(whole)).sum())

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`, both included."""
        self._check(node)
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(int(self.parent[nodes[-1]]))
        return nodes[::-1]

    def branch_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to `node`; none at the root."""
        tokens: list[int] = self.token[self.path(node)[1:]].tolist()
        return tokens

    def children(self, node: int) -> list[int]:
        """Children of `node`, oldest first."""
        self._check(node)
        found: list[int] = np.flatnonzero(self.parent[: len(self)] == node).tolist()
        return found

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        return self._children.get((node, token))

    def revise(self, node: int, confidence: float) -> None:
        """Set the confidence of `node` and update the nodes below it."""
        self._check(node)
        if node == ROOT or not 0.0 <= confidence <= 1.0:
            raise UsageError(f"node {node} cannot have the confidence {confidence}")
        self.confidence[node] = confidence
        for below in self.subtree(node):
            self.cumulative[below] = self.cumulative[self.parent[below]] * self.confidence[below]

    def leaves(self) -> list[int]:
        """Nodes without children, ascending: one per branch."""
        n = len(self)
        is_leaf = np.ones(n, np.bool_)
        is_leaf[self.parent[1:n]] = False
        found: list[int] = np.flatnonzero(is_leaf).tolist()
        return found

    def branch_count(self, nodes: Sequence[int]) -> int:
        """Number of `nodes` that are no parent of another: leaves of the part that they span."""
        return len(set(nodes) - set(self.parent[list(nodes)].tolist()))

    def best_branch(self, nodes: Sequence[int]) -> int:
        """The end of the most probable branch of `nodes`."""
        parents = {int(self.parent[node]) for node in nodes}
        return max((n for n in nodes if n not in parents), key=lambda n: self.cumulative[n])

    def subtree(self, node: int) -> list[int]:
        """`node` and all nodes below it, ascending."""
        self._check(node)
        inside = {node}
        for below, parent in enumerate(self.parent[node + 1 : len(self)].tolist(), node + 1):
            if parent in inside:
                inside.add(below)
        return sorted(inside)

    def reroot(self, node: int) -> TokenTree:
        """A new tree of the same capacity with `node` as its root and what hangs below it.

        Keys stay; depth and cumulative confidence are counted from the new root. This tree stays as
        it is, so that KV caches can still be addressed through it.
        """
        kept = self.subtree(node)
        tree = TokenTree(int(self.token[node]), self.capacity, int(self.key[node]))
        index_of = {old: new for new, old in enumerate(kept)}
        for old in kept[1:]:
            new = tree.add(
                index_of[int(self.parent[old])],
                int(self.token[old]),
                float(self.confidence[old]),
                float(self.probability[old]),
                self.source[old],
            )
            tree.key[new] = self.key[old]
        tree.draws = {index_of[node]: self.draws[node] for node in kept if node in self.draws}
        tree.next_key = self.next_key
        return tree

    def below(self, tokens: Sequence[int]) -> TokenTree:
        """A line of the `tokens` before this root, which is its last node and keeps its key; those
        of other nodes differ from it and hold for this line alone."""
        key = int(self.key[ROOT])
        line = TokenTree(tokens[0], 1 + len(tokens), key + 1)
        for above, token in enumerate([*tokens[1:], int(self.token[ROOT])]):
            end = line.add(above, token, confidence=1.0)
        line.key[end] = key
        return line

    def copy(self) -> TokenTree:
        """A full tree of the nodes that are there now, without draws. Another thread may append
        meanwhile."""
        n = len(self)
        tree = TokenTree(int(self.token[ROOT]), n)
        for name in ("token", "parent", "depth", "confidence", "cumulative", "probability", "key"):
            getattr(tree, name)[:] = getattr(self, name)[:n]
        tree.source = self.source[:n]
        below = zip(tree.parent[1:].tolist(), tree.token[1:].tolist(), strict=True)
        tree._children = {place: node for node, place in enumerate(below, 1)}
        tree.next_key = self.next_key
        tree._n_nodes = n
        return tree

    def after(self, token: int) -> TokenTree:
        """A new tree of the same capacity with the root `token`, which is no node of this one."""
        return TokenTree(token, self.capacity, self.next_key)

    def bare(self) -> TokenTree:
        """A tree of the same capacity with this root and nothing below it."""
        if len(self) == 1:
            return self
        tree = TokenTree(int(self.token[ROOT]), self.capacity, int(self.key[ROOT]))
        tree.next_key = self.next_key
        return tree

    @classmethod
    def joined(cls, trees: Sequence[TokenTree]) -> TokenTree:
        """The nodes of all trees, one tree after the other, below one root that stands for the
        roots of all. Keys are those of the trees, and no longer unique."""
        tree = cls(int(trees[0].token[ROOT]), 1 + sum(len(tree) - 1 for tree in trees))
        for other in trees:
            begin, n_nodes = len(tree), len(other) - 1
            mine, theirs = slice(begin, begin + n_nodes), slice(1, 1 + n_nodes)
            for name in ("token", "depth", "confidence", "cumulative", "probability", "key"):
                getattr(tree, name)[mine] = getattr(other, name)[theirs]
            parents = other.parent[theirs]
            tree.parent[mine] = np.where(parents == ROOT, ROOT, parents + (begin - 1))
            tree.source[mine] = other.source[theirs]
            tree._n_nodes = begin + n_nodes
        return tree

    def _check(self, node: int) -> None:
        if not 0 <= node < len(self):
            raise UsageError(f"node {node} is not in a tree of {len(self)} nodes")


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
