"""Assigns the branches of several texts' trees to llama.cpp's sequences.

llama.cpp has no trees, but a KV cell may belong to many sequences. Every branch is a sequence: all
branches of a text contain its committed prefix, a node belongs to every branch through it, and a
node attends only to its own branch. Each text has one sequence that always contains its whole
prefix. The others are shared by all texts and get a prefix when needed, which copies cell labels
but no keys or values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.pool import Pool
from edgespec_runtimes.gguf.context.cell_moves import UsedCell
from edgespec_runtimes.gguf.context.windows import PromptEnds

if TYPE_CHECKING:
    from edgespec_runtimes.gguf.context.cell_order import Texts

HOME = 0
"""The sequence of the first text."""


class Branches:
    """One text: its committed prefix, and its provisional nodes by key."""

    def __init__(self, home: int, texts: Texts) -> None:
        self.home = home
        self.cells: list[int] = []
        """Cells of the committed prefix, ascending."""
        self.ends = PromptEnds(texts.windows.n_ends if texts.windows else 0)
        """Positions where the next prompt may continue; window layers keep the cells before
        them."""
        self._read_end = 0
        """End of the latest part of a prompt."""
        self._texts = texts
        self._memory = texts.memory
        self._chains: dict[int, list[int]] = {}
        """Keys of provisional nodes by sequence; entry i is at position n_committed + i."""
        self._synced = {home: 0}
        """Number of tokens of the committed prefix in each sequence of this text."""
        self._cell_of: dict[int, int] = {}
        """Cells of provisional nodes."""

    @property
    def n_committed(self) -> int:
        return len(self.cells)

    def extend(self, n_tokens: int) -> None:
        """Append `n_tokens` decoded tokens to the committed prefix."""
        self.cells += (self._texts.append() for _ in range(n_tokens))
        self._synced[self.home] = self.n_committed

    def begin_with(self, cells: Sequence[int]) -> None:
        """Set the committed prefix to `cells`, which the text's own sequence contains."""
        self.cells = list(cells)
        self._synced[self.home] = self.n_committed

    def read(self, n_tokens: int) -> None:
        """`extend` by a part of a prompt, at whose end the next prompt may continue."""
        if self._read_end == self.n_committed:
            self.ends.remove(self._read_end)
        self.extend(n_tokens)
        self.ends.add(self.n_committed)
        self._read_end = self.n_committed

    def reachable(self, most: int) -> int:
        """Length of the longest prefix, at most `most` tokens, from which decoding can continue."""
        windows = self._texts.windows
        return windows.reachable(self.cells[:most]) if windows else min(most, self.n_committed)

    def place(self, pool: Pool, nodes: Sequence[int]) -> list[list[int]]:
        """Sequences of each of `nodes`, parents first, ready to be decoded as one batch.

        Raises UsageError if a parent was not evaluated, or if there are too many branches.
        """
        placed: dict[int, list[int]] = {}
        for node in nodes:
            key = int(pool.key[node])
            if pool.parent[node] < 0:
                sequence = self._take()
                self._chains[sequence] = []
            else:
                sequence = self._branch_at(int(pool.key[pool.parent[node]]), placed)
            self._chains[sequence].append(key)
            self._cell_of[key] = self._texts.append()
            placed[key] = [sequence]
        return [sorted(placed[int(pool.key[node])]) for node in nodes]

    def commit(self, pool: Pool, path: Sequence[int], keep: Sequence[int]) -> None:
        """Append `path` to the prefix; the nodes below it in `keep` stay provisional."""
        keys = [int(pool.key[node]) for node in path]
        if self._chains == {self.home: keys}:  # nothing to drop and nothing to copy
            self.cells += (self._cell_of.pop(key) for key in keys)
            self._synced[self.home] = self.n_committed
            self._chains = {}
            return
        kept_keys = {int(pool.key[node]) for node in keep}
        begin, end = self.n_committed, self.n_committed + len(keys)
        through = {s: c[len(keys) :] for s, c in self._chains.items() if c[: len(keys)] == keys}
        if not through:
            raise UsageError("a path is committed that was not evaluated")
        source = self.home if self.home in through else next(iter(through))
        survivors: dict[int, list[int]] = {}
        for sequence, below in through.items():
            kept = [*takewhile(kept_keys.__contains__, below)]
            if kept and not any(other[: len(kept)] == kept for other in survivors.values()):
                survivors[sequence] = kept
        places, cell_of = self._provisional_places(), self._cell_of
        self.cells += (cell_of[key] for key in keys)
        self._cell_of = {key: cell_of[key] for chain in survivors.values() for key in chain}
        doomed = {*cell_of.values()} - {*self._cell_of.values()} - {*self.cells[begin:]}
        self._texts.drop(doomed, places)
        if source != self.home:
            if self.home in self._chains:
                self._memory.remove(self.home, begin, -1)
            self._memory.copy(source, self.home, begin, end)
        for sequence, chain in self._chains.items():
            if sequence not in through:
                if sequence != self.home:
                    self._memory.remove(sequence, begin, -1)
                    self._synced[sequence] = begin
                continue
            self._synced[sequence] = end
            n_kept = len(survivors.get(sequence, ()))
            if len(keys) + n_kept < len(chain):
                self._memory.remove(sequence, end + n_kept, -1)
        self._synced[self.home] = end
        self._chains = survivors

    def cut(self, n_tokens: int) -> list[tuple[int, int, Sequence[int]]]:
        """Forget all cells after `n_tokens`. Returns `places` for `Texts.drop`."""
        places = [(self.home, n_tokens, self.cells[n_tokens:]), *self._provisional_places()]
        del self.cells[n_tokens:]
        self._cell_of.clear()
        return places

    def remove_after(self, n_tokens: int) -> None:
        """Remove all cells after `n_tokens` from all sequences, also after a failed decode."""
        for sequence, synced in self._synced.items():
            if sequence == self.home or sequence in self._chains or synced > n_tokens:
                self._memory.remove(sequence, n_tokens, -1)
                self._synced[sequence] = min(synced, n_tokens)
        self._chains.clear()

    def forget(self) -> list[int]:
        """Forget everything: the cache was cleared. Returns the freed sequences."""
        branches = [sequence for sequence in self._synced if sequence != self.home]
        self._synced = {self.home: 0}
        self._chains.clear()
        self._cell_of.clear()
        self.cells.clear()
        return branches

    def spare_branch(self) -> int | None:
        """Release a sequence without provisional nodes, if there is one."""
        for sequence in self._synced:
            if sequence != self.home and sequence not in self._chains:
                del self._synced[sequence]
                return sequence
        return None

    # Texts' view of its cells

    @property
    def last_cell(self) -> int:
        """The last cell in use; -1 if there is none."""
        last = self.cells[-1] if self.cells else -1
        return max(last, *self._cell_of.values()) if self._cell_of else last

    @property
    def all_cells(self) -> Sequence[int]:
        return [*self.cells, *sorted(self._cell_of.values())]

    def let_go(self, begin: int, end: int) -> list[int]:
        """Remove committed positions from all sequences; returns those that need them again."""
        holders = [self.home, *(s for s in self._chains if s != self.home)]
        for sequence, synced in self._synced.items():
            if sequence in holders:
                self._memory.remove(sequence, begin, end)
            elif synced > begin:
                self._memory.remove(sequence, begin, -1)
                self._synced[sequence] = begin
        return holders

    def places_from(self, cell: int) -> Iterable[UsedCell]:
        """Cells in use from `cell` on, with all sequences that contain them."""
        begin = bisect_left(self.cells, cell)
        for sequence, synced in self._synced.items():
            if sequence != self.home and sequence not in self._chains and synced > begin:
                self._memory.remove(sequence, begin, -1)
                self._synced[sequence] = begin
        holders = tuple(dict.fromkeys((self.home, *self._chains)))
        for position in range(begin, self.n_committed):
            yield UsedCell(self.cells[position], position, holders)
        for key, its_cell in self._cell_of.items():
            if its_cell >= cell:
                inside = tuple(s for s, chain in self._chains.items() if key in chain)
                depth = self._chains[inside[0]].index(key)
                yield UsedCell(its_cell, self.n_committed + depth, inside)

    def seen_cells(self, n_before: int) -> Iterable[Collection[int]]:
        """Cells of guesses, and the `n_before` cells before each position where the text may
        continue."""
        for end in {*self.ends, self.n_committed}:
            yield self.cells[max(0, end - n_before) : end]
        yield self._cell_of.values()

    def move(self, moved: Mapping[int, int]) -> None:
        begin = bisect_left(self.cells, min(moved))
        self.cells[begin:] = [moved.get(cell, cell) for cell in self.cells[begin:]]
        self._cell_of = {key: moved.get(cell, cell) for key, cell in self._cell_of.items()}

    def _provisional_places(self) -> list[tuple[int, int, Sequence[int]]]:
        """Cells of the provisional nodes by sequence."""
        return [
            (sequence, self.n_committed, [self._cell_of[key] for key in chain])
            for sequence, chain in self._chains.items()
        ]

    def _branch_at(self, parent_key: int, placed: dict[int, list[int]]) -> int:
        """The sequence for a child of `parent_key`: one that ends there, or a new one.

        A new one shares the ancestors: it is added to those in this batch, and earlier ones are
        copied to it.
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
        """An unused sequence that contains the committed prefix."""
        sequence = next((s for s in self._synced if s not in self._chains), None)
        if sequence is None:
            sequence = self._texts.take_free(self)
            self._synced[sequence] = 0
        synced = self._synced[sequence]
        if synced < self.n_committed:
            self._memory.copy(self.home, sequence, synced, self.n_committed)
            self._synced[sequence] = self.n_committed
        return sequence


def likely_first(pool: Pool, nodes: Sequence[int]) -> list[int]:
    """`nodes` depth first, more probable siblings first.

    The accepted path is then probably first, and the dropped nodes behind it can be freed at once.
    """
    if len(nodes) == 1:
        return list(nodes)
    wanted = set(nodes)
    below: dict[int, list[int]] = {}
    tops: list[int] = []
    for node in sorted(nodes, key=lambda node: pool.cumulative[node]):
        parent = int(pool.parent[node])
        (below.setdefault(parent, []) if parent in wanted else tops).append(node)
    ordered: list[int] = []
    while tops:
        node = tops.pop()
        ordered.append(node)
        tops += below.get(node, ())
    return ordered
