"""The pool of guesses: the token trees of all texts in one set of flat arrays.

It knows tokens, parents and confidences; it knows no model, no KV cache and no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UsageError

TARGET = "target"
"""The source of tokens that were not drafted: roots, and tokens picked by the target."""
DROPPED = -1
"""The text of a node that is no longer part of a tree."""
_ARRAYS = {
    "token": np.int32,
    "parent": np.int32,
    "depth": np.int32,
    "text": np.int32,
    "confidence": np.float64,
    "cumulative": np.float64,
    "probability": np.float64,
    "key": np.int64,
}


class Pool:
    """Guesses that hang below the last token of each text, which is the root of its tree.

    All arrays are `[capacity]`; entries below `n` are valid. A parent has a lower index than its
    children, so ascending order is an evaluation order. One thread may add nodes while others read
    nodes they know; `follow` and `pack` need the pool for themselves.

    token       int32    token id
    parent      int32    index of the parent, below 0 for a root
    depth       int32    edges from the root
    text        int32    number of the text's slot, `DROPPED` for a node that is gone
    confidence  float64  calibrated chance that this token is accepted if its parent is
    cumulative  float64  product of the confidences down from the root, whose own is 1
    probability float64  what the source itself gave the token
    source      str      name of its source (a list: strings are no array)
    key         int64    names a node for good, while `pack` changes its index
    """

    token: NDArray[np.int32]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    text: NDArray[np.int32]
    confidence: NDArray[np.float64]
    cumulative: NDArray[np.float64]
    probability: NDArray[np.float64]
    key: NDArray[np.int64]

    def __init__(self, capacity: int = 512) -> None:
        for name, kind in _ARRAYS.items():
            setattr(self, name, np.empty(max(1, capacity), kind))
        self.source: list[str] = []
        self.root: dict[int, int] = {}
        """Root of each text by the number of its slot."""
        self.n = 0
        self.next_key = 0
        self._children: dict[tuple[int, int], int] = {}
        """Child of each parent by token."""

    def plant(self, text: int, token: int) -> int:
        """A root for the text in slot `text`, whose nodes so far are dropped."""
        self.drop(text)
        self.root[text] = root = self._append(text, -1, token, 1.0, 1.0, TARGET)
        return root

    def add(
        self,
        parent: int,
        token: int,
        confidence: float = 1.0,
        probability: float | None = None,
        source: str = TARGET,
    ) -> int:
        """Append a child of `parent` and return its index.

        Without a `probability` of its own, the source gave the token its confidence. Raises
        UsageError if `parent` is unknown or has this child, or `confidence` is no probability.
        """
        self._check(parent)
        if not 0.0 <= confidence <= 1.0:
            raise UsageError(f"confidence is a probability, not {confidence}")
        if self.child(parent, token) is not None:
            raise UsageError(f"node {parent} has a child with token {token} already")
        own = confidence if probability is None else probability
        node = self._append(int(self.text[parent]), parent, token, confidence, own, source)
        self._children[parent, token] = node
        return node

    def _append(
        self, text: int, parent: int, token: int, confidence: float, own: float, source: str
    ) -> int:
        node, is_root = self.n, parent < 0
        if node == len(self.token):
            for name in _ARRAYS:  # readers keep the old arrays, whose nodes stay as they are
                setattr(self, name, np.concatenate([getattr(self, name)] * 2))
        self.token[node], self.parent[node] = token, parent
        self.depth[node] = 0 if is_root else self.depth[parent] + 1
        self.cumulative[node] = confidence * (1.0 if is_root else self.cumulative[parent])
        self.confidence[node], self.probability[node] = confidence, own
        self.key[node] = self.next_key
        self.source.append(source)
        self.next_key += 1
        self.text[node] = text
        self.n = node + 1
        return node

    def alive(self, *texts: int) -> NDArray[np.int64]:
        """Nodes of the trees of these texts, by default of all, ascending."""
        its = self.text[: self.n]
        if len(texts) == 1:
            return np.flatnonzero(its == texts[0])
        return np.flatnonzero(np.isin(its, texts) if texts else its >= 0)

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`, both included."""
        self._check(node)
        nodes = [node]
        while (parent := int(self.parent[nodes[-1]])) >= 0:
            nodes.append(parent)
        return nodes[::-1]

    def branch_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to `node`; none at the root."""
        tokens: list[int] = self.token[self.path(node)[1:]].tolist()
        return tokens

    def children(self, node: int) -> list[int]:
        """Children of `node`, oldest first."""
        self._check(node)
        is_child = (self.parent[: self.n] == node) & (self.text[: self.n] != DROPPED)
        found: list[int] = np.flatnonzero(is_child).tolist()
        return found

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        child = self._children.get((node, token), -1)
        return child if child >= 0 and self.text[child] != DROPPED else None

    def revise(self, node: int, confidence: float) -> None:
        """Set the confidence of `node` and update the nodes below it."""
        self._check(node)
        if self.parent[node] < 0 or not 0.0 <= confidence <= 1.0:
            raise UsageError(f"node {node} cannot have the confidence {confidence}")
        self.confidence[node] = confidence
        for below in self.subtree(node):
            self.cumulative[below] = self.cumulative[self.parent[below]] * self.confidence[below]

    def leaves(self, nodes: Iterable[int]) -> list[int]:
        """Those of `nodes` that are no parent of another: one per branch."""
        nodes = [*nodes]
        parents = set(self.parent[nodes].tolist())
        return [node for node in nodes if node not in parents]

    def subtree(self, node: int) -> list[int]:
        """`node` and all nodes below it, ascending."""
        self._check(node)
        inside = {node}
        for below, parent in enumerate(self.parent[node + 1 : self.n].tolist(), node + 1):
            if parent in inside:
                inside.add(below)
        return sorted(inside)

    def follow(self, node: int) -> list[int]:
        """Make `node` the root of its text; only it and what hangs below it stay, ascending."""
        text, kept = int(self.text[node]), self.subtree(node)
        self.parent[node] = -1
        self.depth[kept] -= self.depth[node]
        self.confidence[node] = self.probability[node] = self.cumulative[node] = 1.0
        for below in kept[1:]:
            self.cumulative[below] = self.cumulative[self.parent[below]] * self.confidence[below]
        self.text[self.alive(text)] = DROPPED
        self.text[kept] = text
        self.root[text] = node
        return kept

    def bare(self, text: int) -> None:
        """Drop all guesses of a text, but not its root."""
        self.text[self.alive(text)] = DROPPED
        self.text[self.root[text]] = text

    def drop(self, text: int) -> None:
        """Drop the tree of a text."""
        self.text[self.alive(text)] = DROPPED
        self.root.pop(text, None)

    def pack(self) -> None:
        """Give up the places of dropped nodes, which renumbers all others."""
        kept = self.alive()
        if len(kept) == self.n:
            return
        place = np.full(self.n + 1, -1, np.int32)
        place[kept] = np.arange(len(kept))
        for name in _ARRAYS:
            array = getattr(self, name)
            array[: len(kept)] = array[kept]
        parents = self.parent[: len(kept)]
        parents[parents >= 0] = place[parents[parents >= 0]]
        self.source = [self.source[node] for node in kept.tolist()]
        self.root = {text: int(place[node]) for text, node in self.root.items()}
        self.n = len(kept)
        below = enumerate(zip(parents.tolist(), self.token[: self.n].tolist(), strict=True))
        self._children = {where: node for node, where in below if where[0] >= 0}

    def _check(self, node: int) -> None:
        if not (0 <= node < self.n and self.text[node] >= 0):
            raise UsageError(f"node {node} is in no tree of {self.n} nodes")


def line(text: int, tokens: Sequence[int]) -> Pool:
    """A pool with one line of `tokens`, the first of which is the root of the text."""
    pool = Pool(len(tokens))
    node = pool.plant(text, tokens[0])
    for token in tokens[1:]:
        node = pool.add(node, token)
    return pool


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
