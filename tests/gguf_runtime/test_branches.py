"""Branches as sequences: what attention would see is always the node's own path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.sequences import likely_first
from one_tree import ROOT, OneTree

HOME = 0


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

    def max_at_once(self, sequence: int, n_tokens: int) -> int:
        return min(n_tokens, 3)

    def cells_of(self, sequence: int) -> list[int]:
        return [n for n, cell in enumerate(self._places) if cell and sequence in cell[2]]

    def label_at(self, cell: int) -> int | None:
        place = self._places[cell]
        return place and place[1]

    def seen(self, sequence: int) -> list[int]:
        """Labels that attention in `sequence` sees, in the order of cells."""
        mine = [(p, label) for p, label, sequences in self.cells if sequence in sequences]
        assert [position for position, _ in mine] == list(range(len(mine)))
        return [label for _, label in mine]

    def _put(self, position: int, label: int, sequences: set[int]) -> None:
        if None not in self._places:
            self._places.append(None)
        self._places[self._places.index(None)] = (position, label, sequences)


class Harness:
    """Decodes what `Branches` places and checks every node's view."""

    def __init__(
        self, n_sequences: int, prefix: int, n_slots: int = 1, n_cells: int = 1 << 20, tile: int = 1
    ) -> None:
        self.cells = FakeCells()
        self.texts = Texts(n_slots, n_sequences - 1, n_cells, self.cells, tile=tile)
        self.branches = self.texts.all[HOME]
        self.prefixes: list[list[int]] = [[] for _ in range(n_slots)]
        self.kept: list[set[int]] = [set() for _ in range(n_slots)]
        for text in range(n_slots):
            self.read(text, prefix)

    def read(self, text: int, n_tokens: int, in_tiles: bool = False) -> None:
        reader = self.texts.all[text] if in_tiles else None
        self.texts.make_room(n_tokens, reader)
        begin = len(self.prefixes[text])
        labels = [-1 - 1000 * text - begin - n for n in range(n_tokens)]
        for n, label in enumerate(labels):
            self.cells.decode(begin + n, label, [text])
        self.texts.all[text].extend(n_tokens)
        self.prefixes[text] += labels

    def evaluate(self, tree: OneTree, nodes: list[int]) -> None:
        self.evaluate_together([(0, tree, nodes)])

    def evaluate_together(self, parts: list[tuple[int, OneTree, list[int]]]) -> None:
        self.texts.make_room(sum(len(nodes) for _, _, nodes in parts))
        placed = [self.texts.all[text].place(tree, nodes) for text, tree, nodes in parts]
        for (text, tree, nodes), of_nodes in zip(parts, placed, strict=True):
            for node, sequences in zip(nodes, of_nodes, strict=True):
                position = self.texts.all[text].n_committed + int(tree.depth[node])
                self.cells.decode(position, int(tree.key[node]), sequences)
                path = [int(tree.key[n]) for n in tree.path(node)]
                for sequence in sequences:
                    assert self.cells.seen(sequence) == self.prefixes[text] + path
            self.kept[text] |= {int(tree.key[node]) for node in nodes}
        self.check()

    def commit(self, tree: OneTree, path: list[int], keep: list[int], text: int = 0) -> None:
        self.texts.all[text].commit(tree, path, keep)
        self.prefixes[text] += [int(tree.key[node]) for node in path]
        self.kept[text] = {int(tree.key[node]) for node in keep}
        self.check()

    def truncate(self, text: int, n_tokens: int) -> None:
        self.texts.truncate({text: n_tokens})
        del self.prefixes[text][n_tokens:]
        self.kept[text].clear()
        self.check()

    def check(self) -> None:
        """Every text is whole, in order and where the layout says; whatever else is there counts as
        dropped."""
        in_use: set[int] = set()
        for text, prefix in enumerate(self.prefixes):
            branches = self.texts.all[text]
            assert self.cells.seen(text)[: len(prefix)] == prefix
            assert self.cells.cells_of(text)[: len(prefix)] == branches.cells
            guesses = {key: self.cells.label_at(cell) for key, cell in branches._cell_of.items()}
            assert guesses == {key: key for key in self.kept[text]}
            in_use |= {*branches.cells, *branches._cell_of.values()}
        assert len(self.cells.cells) == len(in_use) + len(self.texts._waste)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_node_sees_its_own_path_through_random_rounds(data: st.DataObject) -> None:
    """Random trees, evaluated in random portions, committed and re-rooted several times."""
    harness = Harness(6, prefix=data.draw(st.integers(0, 3)))
    keeps = data.draw(st.booleans())
    tree = OneTree(0, capacity=200)
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
                if len(tree.leaves([*nodes, node])) <= 6 and data.draw(st.booleans()):
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


def test_a_full_cache_is_put_in_order() -> None:
    harness = Harness(3, prefix=2, n_cells=6)
    tree = OneTree(1)
    rejected, accepted = tree.add(ROOT, 5, 0.6), tree.add(ROOT, 6, 0.3)
    harness.evaluate(tree, [ROOT, rejected, accepted])
    harness.commit(tree, [ROOT, accepted], [])
    harness.evaluate(OneTree(7, first_key=10), [ROOT])
    assert len(harness.texts._waste) == 1
    harness.commit(OneTree(7, first_key=10), [ROOT], [])
    harness.evaluate(OneTree(7, first_key=11), [ROOT])
    assert len(harness.texts._waste) == 0
    assert len(harness.cells.cells) == 6


def test_cells_that_a_rewound_text_frees_are_filled_before_those_behind_dropped_ones() -> None:
    """Or layers with windows would give back the memory of other cells than those unseen."""
    harness = Harness(3, prefix=2)
    tree = OneTree(1)
    rejected, accepted = tree.add(ROOT, 5, 0.6), tree.add(ROOT, 6, 0.3)
    dropped = tree.add(accepted, 7, 0.5)
    other, last = tree.add(accepted, 8, 0.4), tree.add(dropped, 9, 0.5)
    harness.evaluate(tree, [ROOT, rejected, accepted, dropped, other, last])
    harness.commit(tree, [ROOT, accepted, dropped, last], [])
    harness.truncate(0, 4)
    after = OneTree(9, first_key=10)
    harness.evaluate(after, [ROOT, after.add(ROOT, 10, 0.5), after.add(ROOT, 11, 0.5)])


def test_a_shared_prefix_is_kept_once_and_outlives_its_first_text() -> None:
    harness = Harness(4, prefix=3, n_slots=2)
    harness.texts.truncate({1: 0})
    harness.texts.share(0, 1, 2)
    harness.prefixes[1] = harness.prefixes[0][:2]
    assert len(harness.cells.cells) == 3
    harness.read(1, 2)
    harness.truncate(0, 0)
    assert harness.cells.seen(1) == [-1, -2, -1003, -1004]
    harness.texts.put_in_order()
    assert len(harness.cells.cells) == 4
    assert harness.cells.seen(1) == [-1, -2, -1003, -1004]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_texts_stay_in_order_whatever_the_others_do(data: st.DataObject) -> None:
    """Random rounds of several texts, of which some are cut, shared and moved in between."""
    n_slots, n_branches = data.draw(st.integers(2, 3)), 5
    harness = Harness(n_branches, 1, n_slots, n_cells=data.draw(st.integers(60, 120)))
    keeps = data.draw(st.booleans())
    next_key = 0
    trees: dict[int, OneTree] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        parts = []
        for text in range(n_slots):
            if len(harness.prefixes[text]) > 14 or not data.draw(st.booleans()):
                if data.draw(st.booleans()):
                    harness.truncate(text, data.draw(st.integers(0, len(harness.prefixes[text]))))
                    trees.pop(text, None)
                continue
            tree = trees.pop(text, None) or OneTree(0, 40, first_key=next_key)
            next_key = tree.next_key = max(next_key, tree.next_key) + 50
            next_key += 50
            done = harness.kept[text]
            for _ in range(data.draw(st.integers(0, 3))):
                parent = data.draw(st.integers(0, len(tree) - 1))
                token = 1 + len(tree.children(parent))
                if tree.child(parent, token) is None:
                    tree.add(parent, token, 0.5)
            nodes = [n for n in range(len(tree)) if int(tree.key[n]) not in done]
            parts.append((text, tree, nodes))
        parts = [part for part in parts if part[2]]
        n_leaves = sum(len(tree.leaves(range(len(tree)))) - 1 for _, tree, _ in parts)
        if not parts or n_leaves > n_branches - 1:
            for text, _, _ in parts:
                harness.truncate(text, len(harness.prefixes[text]))
            continue
        harness.evaluate_together(parts)
        for text, tree, _ in data.draw(st.permutations(parts)):
            path = tree.path(data.draw(st.sampled_from(range(len(tree)))))
            children = tree.children(path[-1])
            keep = tree.subtree(children[0]) if children and keeps else []
            harness.commit(tree, path, keep, text)
            if keep:
                trees[text] = tree.reroot(children[0])
        if data.draw(st.booleans()):
            harness.texts.put_in_order()
            harness.check()


def test_the_likely_path_is_evaluated_first() -> None:
    tree = OneTree(1)
    unlikely, likely = tree.add(ROOT, 5, 0.2), tree.add(ROOT, 6, 0.7)
    below = tree.add(likely, 7, 0.1)
    assert likely_first(tree, [ROOT, unlikely, likely, below]) == [ROOT, likely, below, unlikely]
    assert likely_first(tree, [unlikely, below]) == [unlikely, below]
