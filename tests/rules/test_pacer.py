from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.pool import Pool
from edgespec.rules.pacer import PACERS, Guess, Limits, Pacer, most_probable
from one_tree import ROOT, OneTree
from test_pool import pools

BEST_FIRST, LLMCAD = PACERS["best-first"], PACERS["llmcad"]


def guess(token: int, confidence: float) -> Guess:
    return Guess(token, confidence, confidence, "draft")


def forked(*confidences: float) -> OneTree:
    """A root with a child of each confidence."""
    tree = OneTree(0)
    for token, confidence in enumerate(confidences):
        tree.add(ROOT, token, confidence)
    return tree


def extend(pacer: Pacer, pool: Pool, open_nodes: list[int], max_nodes: int = 64) -> list[int]:
    return pacer.extend(pool, pool.alive(), open_nodes, max_nodes, len(pool.root), 0.5)


# LLMCad


def test_llmcad_opens_a_branch_for_every_candidate_above_three_tenths() -> None:
    offered = [guess(1, 0.35), guess(2, 0.33), guess(3, 0.3)]
    assert LLMCAD.children(OneTree(0), ROOT, offered) == offered[:2]


def test_llmcad_goes_on_with_the_best_candidate_however_unlikely() -> None:
    offered = [guess(1, 0.02), guess(2, 0.01)]
    assert LLMCAD.children(OneTree(0), ROOT, offered) == offered[:1]


def test_llmcad_extends_the_branch_that_lacks_most_of_its_fair_share() -> None:
    """Shares of three tokens: 3 * 0.6 / 0.8 - 2 = 0.25 against 3 * 0.2 / 0.8 - 1 = -0.25."""
    tree = forked(0.6, 0.2)
    tip = tree.add(1, 5, 1.0)
    assert extend(LLMCAD, tree, [2, tip]) == [tip]


def test_llmcad_turns_to_another_branch_when_the_best_has_had_its_share() -> None:
    """Shares of four tokens: 4 * 0.4 / 0.8 - 3 = -1 against 4 * 0.4 / 0.8 - 1 = 1."""
    tree = forked(0.4, 0.4)
    tip = tree.add(tree.add(1, 5, 1.0), 6, 1.0)
    assert extend(LLMCAD, tree, [2, tip]) == [2]


# Best first


def test_best_first_extends_the_most_probable_open_node() -> None:
    assert extend(BEST_FIRST, forked(0.2, 0.7), [1, 2]) == [2]


def test_best_first_evaluates_near_equals_in_one_step() -> None:
    assert extend(BEST_FIRST, forked(0.3, 0.4, 0.1), [1, 2, 3]) == [1, 2]


def test_best_first_keeps_no_node_that_is_hardly_possible() -> None:
    offered = [guess(1, 0.2), guess(2, 0.05)]
    assert BEST_FIRST.children(forked(0.1), 1, offered) == offered[:1]


def test_best_first_is_done_when_no_open_node_can_have_a_child_among_the_best() -> None:
    tree = forked(0.5, 0.3, 0.1)
    assert extend(BEST_FIRST, tree, [2, 3], 3) == []
    assert extend(BEST_FIRST, tree, [1, 2, 3], 3) == [1]


@given(pools(), st.sampled_from(sorted(PACERS)), st.data())
def test_a_pacer_extends_open_nodes_only(pool: Pool, name: str, data: st.DataObject) -> None:
    leaves = st.sampled_from(pool.leaves(pool.alive()))
    open_nodes = data.draw(st.lists(leaves, unique=True, min_size=1).map(sorted))
    max_nodes = data.draw(st.integers(1, 30))
    assert set(extend(PACERS[name], pool, open_nodes, max_nodes)) <= set(open_nodes)


@pytest.mark.parametrize("name", PACERS)
def test_a_pacer_grows_a_bare_root(name: str) -> None:
    assert extend(PACERS[name], OneTree(0), [ROOT]) == [ROOT]


# What is verified


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    return Limits(draw(st.integers(1, 30)), draw(st.integers(1, 6)), draw(st.integers(0, 6)))


@given(pools(), st.lists(limits(), min_size=3, max_size=3), limits())
def test_a_selection_is_trees_within_the_limits_of_each_text_and_of_all(
    pool: Pool, each: list[Limits], together: Limits
) -> None:
    its_limits = {text: each[text] for text in pool.root}
    most = len(its_limits) + together.max_nodes
    found = most_probable(pool, its_limits, most, together.max_branches)
    nodes = [node for node, _ in found]
    assert nodes[: len(its_limits)] == [pool.root[text] for text in its_limits]
    assert len(nodes) == len(set(nodes)) <= most
    n_branches = 0
    for text, its in its_limits.items():
        mine = [node for node in nodes if pool.text[node] == text]
        assert len(mine) <= its.max_nodes and pool.depth[mine].max() <= its.max_depth
        assert all(int(pool.parent[node]) in mine for node in mine if pool.parent[node] >= 0)
        assert len(pool.leaves(mine)) <= its.max_branches
        n_branches += len(pool.leaves(mine)) - 1
    assert n_branches < together.max_branches


def test_a_text_without_room_leaves_the_others_theirs() -> None:
    pool = Pool()
    roots = [pool.plant(text, 0) for text in range(2)]
    nodes = [pool.add(root, token, 0.9 / (1 + token)) for token in (1, 2) for root in roots]
    found = most_probable(pool, {0: Limits(2, 9, 9), 1: Limits(3, 9, 9)}, 9, 9)
    assert [node for node, _ in found] == [*roots, *nodes[:2], nodes[3]]


def test_where_no_branch_may_begin_the_others_go_on() -> None:
    tree = forked(0.9, 0.8)
    end = tree.add(ROOT + 1, 2, 0.5)
    found = most_probable(tree, {0: Limits(9, 1, 9)}, 9, 9)
    assert [node for node, _ in found] == [ROOT, ROOT + 1, end]


@given(pools(), st.integers(2, 40))
def test_a_selection_has_the_highest_possible_confidence(pool: Pool, n: int) -> None:
    wide, n_roots = Limits(99, 99, 99), len(pool.root)
    found = most_probable(pool, dict.fromkeys(pool.root, wide), n_roots + n, 99)
    best = np.sort(pool.cumulative[pool.alive()])[::-1][: n_roots + n]
    assert np.allclose(pool.cumulative[[node for node, _ in found]], best)
