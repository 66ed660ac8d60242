"""Assigns the branches of the tree to llama.cpp's sequences; the KV cache's transaction.

llama.cpp knows no trees, but a KV cell may belong to many sequences. Every branch is a sequence:
all list the committed prefix, a node belongs to each branch that runs through it, and attention
sees a node's own branch only. Sequence 0 always holds the whole committed prefix; the others take
it over when they are needed, which costs a copy of cell labels and no copy of keys or values.

Attention adds up what it sees in the order of cells, and rounding knows the order. Committed tokens
therefore stand in the first cells, in their order, as if they had been decoded one by one: a path
beside which other nodes were rejected is moved down, key and value of a token each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edgespec.errors import UsageError
from edgespec.tree import ROOT, TokenTree

HOME = 0


class SequenceMemory(Protocol):
    """llama.cpp's sequence operations; positions are half-open ranges, -1 means the end."""

    def remove(self, sequence: int, begin: int, end: int) -> None: ...

    def copy(self, source: int, target: int, begin: int, end: int) -> None: ...

    def save(self, sequence: int, begin: int, end: int) -> Any: ...

    def restore(self, saved: Any, sequence: int, begin: int, end: int) -> None: ...


class Branches:
    """Assigns provisional nodes, known by their keys, to sequences."""

    def __init__(self, n_sequences: int, memory: SequenceMemory) -> None:
        self._memory = memory
        self._chains: dict[int, list[int]] = {}
        """Sequence -> keys of its provisional nodes; entry i stands at position n_committed + i."""
        self._synced = [0] * n_sequences
        """Tokens of the committed prefix that each sequence holds."""
        self._decoded: list[int] = []
        """Keys of provisional nodes in the order of their cells."""
        self.n_committed = 0

    @property
    def n_sequences(self) -> int:
        return len(self._synced)

    @property
    def has_provisional(self) -> bool:
        return bool(self._chains)

    def extend(self, n_tokens: int) -> None:
        """`n_tokens` were appended to the committed prefix, in sequence 0."""
        self.n_committed += n_tokens
        self._synced[HOME] = self.n_committed

    def place(self, tree: TokenTree, nodes: Sequence[int]) -> list[list[int]]:
        """Sequences of each of `nodes`, parents first, ready to be decoded as one batch.

        Raises UsageError when a parent was not evaluated or there are more branches than sequences.
        """
        placed: dict[int, list[int]] = {}
        for node in nodes:
            key = int(tree.key[node])
            if node == ROOT:
                sequence = self._take()
                self._chains[sequence] = []
            else:
                sequence = self._branch_at(int(tree.key[tree.parent[node]]), placed)
            self._chains[sequence].append(key)
            self._decoded.append(key)
            placed[key] = [sequence]
        return [sorted(placed[int(tree.key[node])]) for node in nodes]

    def commit(self, tree: TokenTree, path: Sequence[int], keep: Sequence[int]) -> None:
        """Make `path` part of the prefix; of the nodes below it those in `keep` stay."""
        keys = [int(tree.key[node]) for node in path]
        kept_keys = {int(tree.key[node]) for node in keep}
        begin, end = self.n_committed, self.n_committed + len(keys)
        source = next((s for s, chain in self._chains.items() if chain[: len(keys)] == keys), None)
        if source is None:
            raise UsageError("a path is committed that was not evaluated")
        in_order = self._decoded[: len(keys)] == keys
        self._decoded = [key for key in self._decoded if key in kept_keys]
        if not in_order and not kept_keys:
            self._move_down(source, end)
            return
        if source != HOME and self._chains.get(HOME, [])[: len(keys)] != keys:
            self._memory.remove(HOME, begin, -1)
            self._chains.pop(HOME, None)
            self._memory.copy(source, HOME, begin, end)
        self.n_committed = end
        survivors: dict[int, list[int]] = {}
        for sequence, chain in self._chains.items():
            if chain[: len(keys)] != keys:
                self._memory.remove(sequence, begin, -1)
                self._synced[sequence] = begin
                continue
            self._synced[sequence] = end
            below = chain[len(keys) :]
            kept = _leading(below, kept_keys)
            if any(other[: len(kept)] == kept for other in survivors.values()):
                kept = []
            if len(kept) < len(below):
                self._memory.remove(sequence, end + len(kept), -1)
            if kept:
                survivors[sequence] = kept
        self._synced[HOME] = end
        self._chains = survivors

    def _move_down(self, source: int, end: int) -> None:
        """Commit what `source` holds up to `end`, in the first cells; nothing else stays."""
        begin = self.n_committed
        saved = self._memory.save(source, begin, end)
        self.truncate(begin)
        self._memory.restore(saved, HOME, begin, end)
        self.extend(end - begin)

    def truncate(self, n_tokens: int) -> None:
        """Shorten the prefix to `n_tokens`; nothing provisional stays.

        Sequence 0 is always cut: a failed decode leaves cells in it that no node stands for.
        """
        for sequence, synced in enumerate(self._synced):
            if sequence == HOME or sequence in self._chains or synced > n_tokens:
                self._memory.remove(sequence, n_tokens, -1)
                self._synced[sequence] = min(synced, n_tokens)
        self._chains.clear()
        self._decoded.clear()
        self.n_committed = n_tokens

    def _branch_at(self, parent_key: int, placed: dict[int, list[int]]) -> int:
        """The sequence for a child of `parent_key`: the one that ends there, or a new one.

        A new one shares the ancestors: those of this batch by listing it, earlier ones by copy.
        """
        through = None
        for sequence, chain in self._chains.items():
            if chain and chain[-1] == parent_key:
                return sequence
            if through is None and parent_key in chain:
                through = sequence
        if through is None:
            raise UsageError("a node is evaluated whose parent was not")
        chain = self._chains[through]
        shared = chain[: chain.index(parent_key) + 1]
        sequence = self._take()
        earlier = sum(key not in placed for key in shared)
        if earlier:
            begin = self.n_committed
            self._memory.copy(through, sequence, begin, begin + earlier)
        for key in shared[earlier:]:
            placed[key].append(sequence)
        self._chains[sequence] = list(shared)
        return sequence

    def _take(self) -> int:
        """A free sequence, brought up to the committed prefix."""
        for sequence, synced in enumerate(self._synced):
            if sequence not in self._chains:
                if synced < self.n_committed:
                    self._memory.copy(HOME, sequence, synced, self.n_committed)
                    self._synced[sequence] = self.n_committed
                return sequence
        raise UsageError(f"the tree has more than {self.n_sequences} branches")


def likely_first(tree: TokenTree, nodes: Sequence[int]) -> list[int]:
    """`nodes` depth first, the more probable child before its siblings.

    The path that will be accepted is then likely to come first, and needs no moving.
    """
    if len(nodes) == 1:
        return list(nodes)
    wanted = set(nodes)
    below: dict[int, list[int]] = {}
    tops: list[int] = []
    for node in sorted(nodes, key=lambda node: tree.cumulative[node]):
        parent = int(tree.parent[node])
        (below.setdefault(parent, []) if parent in wanted else tops).append(node)
    ordered: list[int] = []
    while tops:
        node = tops.pop()
        ordered.append(node)
        tops += below.get(node, ())
    return ordered


def _leading(chain: Sequence[int], allowed: set[int]) -> list[int]:
    """The part of `chain`, from its start, whose keys are all allowed."""
    n = 0
    while n < len(chain) and chain[n] in allowed:
        n += 1
    return list(chain[:n])
