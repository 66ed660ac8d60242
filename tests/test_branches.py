"""Branches as sequences: what attention would see is always the node's own path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import UsageError
from edgespec.tree import ROOT, TokenTree
from edgespec_runtimes.gguf.branches import HOME, Branches


class FakeCells:
    """A KV cache as llama.cpp keeps it: cells with a position, a label and their sequences."""

    def __init__(self) -> None:
        self.cells: list[tuple[int, int, set[int]]] = []

    def decode(self, position: int, label: int, sequences: list[int]) -> None:
        for sequence in sequences:
            assert len(self.seen(sequence)) == position, "a sequence continues at its last position"
        self.cells.append((position, label, set(sequences)))

    def remove(self, sequence: int, begin: int, end: int) -> None:
        for position, _, sequences in self.cells:
            if position >= begin and (end < 0 or position < end):
                sequences.discard(sequence)
        self.cells = [cell for cell in self.cells if cell[2]]

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        for position, _, sequences in self.cells:
            if source in sequences and begin <= position < end:
                sequences.add(target)

    def seen(self, sequence: int) -> list[int]:
        """Labels that attention in `sequence` sees, by position."""
        mine = sorted((p, label) for p, label, sequences in self.cells if sequence in sequences)
        assert [position for position, _ in mine] == list(range(len(mine)))
        return [label for _, label in mine]


class Harness:
    """Decodes what `Branches` places and checks every node's view."""

    def __init__(self, n_sequences: int, prefix: int) -> None:
        self.cells = FakeCells()
        self.branches = Branches(n_sequences, self.cells)
        for position in range(prefix):
            self.cells.decode(position, -1 - position, [HOME])
        self.branches.extend(prefix)
        self.prefix = [-1 - position for position in range(prefix)]

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
        keep = [n for n in tree.subtree(root) if int(tree.key[n]) in evaluated]
        harness.commit(tree, path, keep)
        evaluated = {int(tree.key[n]) for n in keep}
        tree = tree.reroot(root)
