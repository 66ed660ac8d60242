from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import UsageError
from edgespec.tree import ROOT, TokenTree


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 24) -> TokenTree:
    tree = TokenTree(draw(st.integers(0, 9)), capacity=64, first_key=draw(st.integers(0, 1000)))
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(0, len(tree) - 1))
        token = draw(st.integers(0, 9))
        if tree.child(parent, token) is None:
            tree.add(parent, token, draw(st.floats(0.0, 1.0)))
    return tree


@st.composite
def trees_and_nodes(draw: st.DrawFn) -> tuple[TokenTree, int]:
    tree = draw(trees())
    return tree, draw(st.integers(0, len(tree) - 1))


def test_a_new_tree_is_its_root() -> None:
    tree = TokenTree(7)
    assert (len(tree), tree.token[ROOT], tree.parent[ROOT], tree.depth[ROOT]) == (1, 7, -1, 0)
    assert tree.cumulative[ROOT] == 1.0


def test_cumulative_confidence_is_the_product_down_the_branch() -> None:
    tree = TokenTree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 2, 0.25)
    assert tree.cumulative[2] == 0.125


def test_child_finds_the_token_below_the_node_only() -> None:
    tree = TokenTree(0)
    left, right = tree.add(ROOT, 1, 0.5), tree.add(ROOT, 2, 0.5)
    below = tree.add(left, 3, 0.5)
    assert tree.child(left, 3) == below
    assert tree.child(right, 3) is None
    assert tree.children(ROOT) == [left, right]


@given(trees())
def test_parents_come_before_children_and_paths_are_contiguous(tree: TokenTree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[0] == ROOT and path[-1] == node and len(path) == tree.depth[node] + 1
        assert all(tree.parent[below] == above for above, below in itertools.pairwise(path))
        assert path == sorted(path)


@given(trees())
def test_there_is_a_branch_per_leaf(tree: TokenTree) -> None:
    leaves = tree.leaves()
    assert leaves == [node for node in range(len(tree)) if not tree.children(node)]
    assert tree.branch_count(range(len(tree))) == len(leaves)


@given(trees_and_nodes())
def test_a_subtree_is_what_has_the_node_on_its_path(case: tuple[TokenTree, int]) -> None:
    tree, node = case
    assert tree.subtree(node) == [n for n in range(len(tree)) if node in tree.path(n)]


@given(trees_and_nodes())
def test_rerooting_keeps_tokens_keys_and_confidences_below_the_node(
    case: tuple[TokenTree, int],
) -> None:
    tree, node = case
    rerooted = tree.reroot(node)
    old_of_key = {int(tree.key[old]): old for old in tree.subtree(node)}
    assert set(rerooted.key[: len(rerooted)].tolist()) == set(old_of_key)
    for new in range(len(rerooted)):
        old = old_of_key[int(rerooted.key[new])]
        below = tree.path(old)[int(tree.depth[node]) :]
        assert rerooted.token[rerooted.path(new)].tolist() == tree.token[below].tolist()
        assert rerooted.depth[new] == tree.depth[old] - tree.depth[node]
        assert rerooted.cumulative[new] == pytest.approx(np.prod(tree.confidence[below[1:]]))


@given(trees_and_nodes())
def test_a_key_names_one_node_before_and_after_rerooting(case: tuple[TokenTree, int]) -> None:
    tree, node = case
    keys, rerooted = tree.key[: len(tree)].tolist(), tree.reroot(node)
    assert len(set(keys)) == len(tree) and max(keys) < tree.next_key
    assert rerooted.key[: len(rerooted)].tolist() == [keys[old] for old in tree.subtree(node)]


@given(trees_and_nodes())
def test_keys_given_after_rerooting_are_new_ones(case: tuple[TokenTree, int]) -> None:
    tree, node = case
    rerooted = tree.reroot(node)
    new = rerooted.add(ROOT, 99, 0.5)
    assert rerooted.key[new] not in tree.key[: len(tree)]


@given(trees())
def test_a_bare_tree_keeps_the_root_and_its_key(tree: TokenTree) -> None:
    bare = tree.bare()
    assert len(bare) == 1
    assert (bare.token[ROOT], bare.key[ROOT], bare.next_key) == (
        tree.token[ROOT],
        tree.key[ROOT],
        tree.next_key,
    )


def test_growing_moves_no_memory() -> None:
    tree = TokenTree(0, capacity=8)
    view = tree.token[:3]
    for token in range(1, 8):
        tree.add(ROOT, token, 0.1)
    assert np.shares_memory(view, tree.token)
    assert view.tolist() == [0, 1, 2]


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_a_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(UsageError, match="probability"):
        TokenTree(0).add(ROOT, 1, confidence)


def test_a_full_tree_takes_no_node() -> None:
    tree = TokenTree(0, capacity=1)
    assert tree.is_full
    with pytest.raises(UsageError, match="full at 1"):
        tree.add(ROOT, 1, 0.5)


def test_siblings_carry_different_tokens() -> None:
    tree = TokenTree(0)
    tree.add(ROOT, 1, 0.5)
    with pytest.raises(UsageError, match="token 1 already"):
        tree.add(ROOT, 1, 0.5)


@pytest.mark.parametrize("node", [-1, 1])
def test_an_unknown_node_is_refused(node: int) -> None:
    with pytest.raises(UsageError, match="not in a tree of 1"):
        TokenTree(0).path(node)


def test_a_tree_without_room_for_its_root_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity"):
        TokenTree(0, capacity=0)


def test_a_revised_confidence_counts_for_all_that_hangs_below() -> None:
    tree = TokenTree(0)
    child = tree.add(ROOT, 1, 0.5)
    below = tree.add(child, 2, 0.5)
    other = tree.add(ROOT, 3, 0.4)
    tree.revise(child, 0.8)
    assert tree.confidence[child] == 0.8
    assert tree.cumulative[[child, below, other]].tolist() == pytest.approx([0.8, 0.4, 0.4])


@pytest.mark.parametrize(("node", "confidence"), [(ROOT, 0.5), (1, 1.5), (9, 0.5)])
def test_no_root_and_no_stranger_is_revised(node: int, confidence: float) -> None:
    tree = TokenTree(0)
    tree.add(ROOT, 1, 0.5)
    with pytest.raises(UsageError):
        tree.revise(node, confidence)


def test_who_guessed_a_node_and_how_probable_it_was_survive_re_rooting() -> None:
    tree = TokenTree(0)
    child = tree.add(ROOT, 1, 0.5, 0.3, "draft")
    tree.add(child, 2, 0.5, 0.2, "lookup")
    below = tree.reroot(child)
    assert below.source[1] == "lookup"
    assert below.probability[1] == 0.2


def test_tokens_before_a_root_form_a_line_that_ends_with_it() -> None:
    tree = TokenTree(3, first_key=1)
    tree.add(ROOT, 7, 0.1)
    line = tree.below([1, 2])
    assert line.token[: len(line)].tolist() == [1, 2, 3]
    assert line.parent[: len(line)].tolist() == [-1, 0, 1]
    assert int(line.key[2]) == int(tree.key[ROOT])
    assert len({*line.key[:3].tolist()}) == 3
    assert len(tree) == 2 and tree.next_key == 3


@given(trees())
def test_a_copy_of_a_tree_stays_as_it_was_and_travels(tree: TokenTree) -> None:
    copy = pickle.loads(pickle.dumps(tree.copy()))
    n_nodes, paths = len(tree), [tree.path(node) for node in range(len(tree))]
    tree.add(ROOT, 10, 0.5)
    assert len(copy) == copy.capacity == n_nodes
    assert [copy.path(node) for node in range(n_nodes)] == paths
    for name in ("token", "depth", "confidence", "cumulative", "probability", "key"):
        assert getattr(copy, name).tolist() == getattr(tree, name)[:n_nodes].tolist()
    for node in range(1, n_nodes):
        assert copy.child(int(copy.parent[node]), int(copy.token[node])) == node
