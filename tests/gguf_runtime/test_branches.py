"""Branches as sequences: what attention would see is always the node's own path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import UsageError
from edgespec.tree import ROOT, TokenTree
from edgespec_runtimes.gguf.llama.sequences import HOME, Branches, likely_first


class FakeCells:
    """A KV cache as llama.cpp keeps it: cells with a position, a label and their sequences. What
    is decoded or restored goes to the first free ones."""

    def __init__(self) -> None:
        self._places: list[tuple[int, int, set[int]] | None] = []

    @property
    def cells(self) -> list[tuple[int, int, set[int]]]:
        return [cell for cell in self._places if cell is not None]

    def decode(self, position: int, label: int, sequences: list[int]) -> None:
        for sequence in sequences:
            assert len(self.seen(sequence)) == position, "a sequence continues at its last position"
        self._put(position, label, set(sequences))

    def remove(self, sequence: int, begin: int, end: int) -> None:
        for position, _, sequences in self.cells:
            if position >= begin and (end < 0 or position < end):
                sequences.discard(sequence)
        self._places = [cell if cell and cell[2] else None for cell in self._places]

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        for position, _, sequences in self.cells:
            if source in sequences and begin <= position < end:
                sequences.add(target)

    def save(self, sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
        return [
            (position, label)
            for position, label, sequences in self.cells
            if sequence in sequences and begin <= position < end
        ]

    def restore(self, saved: list[tuple[int, int]], sequence: int, begin: int, end: int) -> None:
        assert [position for position, _ in saved] == list(range(begin, end))
        for position, label in saved:
            self._put(position, label, {sequence})

    def seen(self, sequence: int) -> list[int]:
        """Labels that attention in `sequence` sees, by position."""
        mine = sorted((p, label) for p, label, sequences in self.cells if sequence in sequences)
        assert [position for position, _ in mine] == list(range(len(mine)))
        return [label for _, label in mine]

    def _put(self, position: int, label: int, sequences: set[int]) -> None:
        if None not in self._places:
            self._places.append(None)
        self._places[self._places.index(None)] = (position, label, sequences)


class Harness:
    """Decodes what `Branches` places and checks every node's view."""

    def __init__(self, n_sequences: int, prefix: int) -> None:
        self.cells = FakeCells()
        self.branches = Branches(n_sequences, self.cells)
        for position in range(prefix):
            self.cells.decode(position, -1 - position, [HOME])
        self.branches.extend(prefix)
        self.prefix = [-1 - position for position in range(prefix)]
        self.has_kept = False

    def evaluate(self, tree: TokenTree, nodes: list[int]) -> None:
        placed = self.branches.place(tree, nodes)
        for node, sequences in zip(nodes, placed, strict=True):
            position = self.branches.n_committed + int(tree.depth[node])
            self.cells.decode(position, int(tree.key[node]), sequences)
            expected = self.prefix + [int(tree.key[n]) for n in tree.path(node)]
            for sequence in sequences:
                assert self.cells.seen(sequence) == expected

    def commit(self, tree: TokenTree, path: list[int], keep: list[int]) -> None:
        self.branches.commit(tree, path, keep)
        self.prefix += [int(tree.key[node]) for node in path]
        assert self.cells.seen(HOME)[: len(self.prefix)] == self.prefix
        kept = {int(tree.key[node]) for node in keep}
        provisional = {label for position, label, _ in self.cells.cells}
        assert provisional == set(self.prefix) | kept
        if not self.has_kept and not kept:
            assert [position for position, _, _ in self.cells.cells] == list(
                range(len(self.prefix))
            )
        self.has_kept |= bool(kept)


def test_a_chain_takes_one_sequence() -> None:
    harness = Harness(1, prefix=3)
    tree = TokenTree(1)
    for depth in range(4):
        harness.evaluate(tree, [depth])
        tree.add(depth, depth, 0.5)


def test_siblings_share_their_parent_within_a_batch() -> None:
    harness = Harness(3, prefix=2)
    tree = TokenTree(1)
    nodes = [ROOT, *(tree.add(ROOT, token, 0.3) for token in range(3))]
    harness.evaluate(tree, nodes)


def test_more_branches_than_sequences_are_refused() -> None:
    harness = Harness(2, prefix=1)
    tree = TokenTree(1)
    nodes = [ROOT, *(tree.add(ROOT, token, 0.3) for token in range(3))]
    with pytest.raises(UsageError, match="more than 2 branches"):
        harness.branches.place(tree, nodes)


def test_a_node_without_evaluated_parent_is_refused() -> None:
    harness = Harness(2, prefix=1)
    tree = TokenTree(1)
    with pytest.raises(UsageError, match="parent was not"):
        harness.branches.place(tree, [tree.add(ROOT, 1, 0.5)])


def test_committing_what_was_not_evaluated_is_refused() -> None:
    harness = Harness(2, prefix=1)
    with pytest.raises(UsageError, match="not evaluated"):
        harness.branches.commit(TokenTree(1), [ROOT], [])


def test_truncating_drops_everything_provisional() -> None:
    harness = Harness(2, prefix=3)
    tree = TokenTree(1)
    harness.evaluate(tree, [ROOT])
    harness.branches.truncate(2)
    assert [label for _, label, _ in harness.cells.cells] == [-1, -2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_node_sees_its_own_path_through_random_rounds(data: st.DataObject) -> None:
    """Random trees, evaluated in random portions, committed and re-rooted several times."""
    harness = Harness(6, prefix=data.draw(st.integers(0, 3)))
    keeps = data.draw(st.booleans())
    tree = TokenTree(0, capacity=200)
    evaluated: set[int] = set()
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 3))):
            batch = []
            for node in range(len(tree)):
                done = evaluated | {int(tree.key[n]) for n in batch}
                is_ready = node == ROOT or int(tree.key[tree.parent[node]]) in done
                if int(tree.key[node]) in done or not is_ready:
                    continue
                nodes = [n for n in range(len(tree)) if int(tree.key[n]) in done]
                if tree.branch_count([*nodes, node]) <= 6 and data.draw(st.booleans()):
                    batch.append(node)
            if batch:
                harness.evaluate(tree, batch)
                evaluated |= {int(tree.key[n]) for n in batch}
            for _ in range(data.draw(st.integers(0, 4))):
                parent = data.draw(st.integers(0, len(tree) - 1))
                token = len(tree.children(parent))
                tree.add(parent, token, 0.5)
        if int(tree.key[ROOT]) not in evaluated:
            harness.evaluate(tree, [ROOT])
            evaluated.add(int(tree.key[ROOT]))
        ends = [n for n in range(len(tree)) if int(tree.key[n]) in evaluated]
        path = tree.path(data.draw(st.sampled_from(ends)))
        children = tree.children(path[-1])
        root = data.draw(st.sampled_from(children)) if children else tree.add(path[-1], 9, 0.1)
        keep = [n for n in tree.subtree(root) if int(tree.key[n]) in evaluated and keeps]
        harness.commit(tree, path, keep)
        evaluated = {int(tree.key[n]) for n in keep}
        tree = tree.reroot(root)


def test_committed_tokens_stand_in_the_first_cells_in_their_order() -> None:
    harness = Harness(3, prefix=2)
    tree = TokenTree(1)
    rejected, accepted = tree.add(ROOT, 5, 0.6), tree.add(ROOT, 6, 0.3)
    harness.evaluate(tree, [ROOT, rejected, accepted])
    harness.commit(tree, [ROOT, accepted], [])
    assert [label for _, label, _ in harness.cells.cells] == [-1, -2, 0, int(tree.key[accepted])]


def test_the_likely_path_is_evaluated_first() -> None:
    tree = TokenTree(1)
    unlikely, likely = tree.add(ROOT, 5, 0.2), tree.add(ROOT, 6, 0.7)
    below = tree.add(likely, 7, 0.1)
    assert likely_first(tree, [ROOT, unlikely, likely, below]) == [ROOT, likely, below, unlikely]
    assert likely_first(tree, [unlikely, below]) == [unlikely, below]
