from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.rules.pacer import (
    PACERS,
    Guess,
    LLMCadPacer,
    Pacer,
    nodes_to_verify,
)
from edgespec.rules.tree_limits import Limits
from edgespec.tree import ROOT, TokenTree
from test_tree import trees

WIDE = Limits(max_nodes=64, max_branches=32, max_depth=16)


def guess(token: int, confidence: float) -> Guess:
    return Guess(token, confidence, confidence, "draft")


def forked(*confidences: float) -> TokenTree:
    """A root with a child of each confidence."""
    tree = TokenTree(0)
    for token, confidence in enumerate(confidences):
        tree.add(ROOT, token, confidence)
    return tree


# LLMCad


def test_llmcad_opens_a_branch_for_every_candidate_above_three_tenths() -> None:
    offered = [guess(1, 0.35), guess(2, 0.33), guess(3, 0.3)]
    assert LLMCadPacer().children(TokenTree(0), ROOT, offered) == offered[:2]


def test_llmcad_goes_on_with_the_best_candidate_however_unlikely() -> None:
    offered = [guess(1, 0.02), guess(2, 0.01)]
    assert LLMCadPacer().children(TokenTree(0), ROOT, offered) == offered[:1]


def test_llmcad_extends_the_branch_that_lacks_most_of_its_fair_share() -> None:
    """Shares of three tokens: 3 * 0.6 / 0.8 - 2 = 0.25 against 3 * 0.2 / 0.8 - 1 = -0.25."""
    tree = forked(0.6, 0.2)
    tip = tree.add(1, 5, 1.0)
    assert LLMCadPacer().extend(tree, [2, tip], WIDE) == [tip]


def test_llmcad_turns_to_another_branch_when_the_best_has_had_its_share() -> None:
    """Shares of four tokens: 4 * 0.4 / 0.8 - 3 = -1 against 4 * 0.4 / 0.8 - 1 = 1."""
    tree = forked(0.4, 0.4)
    tip = tree.add(tree.add(1, 5, 1.0), 6, 1.0)
    assert LLMCadPacer().extend(tree, [2, tip], WIDE) == [2]


# Best first


def test_best_first_extends_the_most_probable_open_node() -> None:
    tree = forked(0.2, 0.7)
    assert Pacer().extend(tree, [1, 2], WIDE) == [2]


def test_best_first_evaluates_near_equals_in_one_step() -> None:
    tree = forked(0.3, 0.4, 0.1)
    assert Pacer().extend(tree, [1, 2, 3], WIDE) == [1, 2]


def test_best_first_keeps_no_node_that_is_hardly_possible() -> None:
    tree = forked(0.1)
    offered = [guess(1, 0.2), guess(2, 0.05)]
    assert Pacer().children(tree, 1, offered) == offered[:1]


def test_best_first_is_done_when_no_open_node_can_have_a_child_among_the_best() -> None:
    tree = forked(0.5, 0.3, 0.1)
    assert Pacer().extend(tree, [2, 3], Limits(3, 32, 16)) == []
    assert Pacer().extend(tree, [1, 2, 3], Limits(3, 32, 16)) == [1]


# All of them


@pytest.mark.parametrize("name", PACERS)
def test_a_pacer_grows_a_bare_root(name: str) -> None:
    assert PACERS[name]().extend(TokenTree(0), [ROOT], WIDE) == [ROOT]


@pytest.mark.parametrize("name", PACERS)
def test_a_pacer_grows_nothing_below_the_greatest_depth(name: str) -> None:
    assert PACERS[name]().extend(forked(0.9), [1], Limits(64, 32, max_depth=1)) == []


@given(trees(), st.sampled_from(sorted(PACERS)), st.data())
def test_a_pacer_extends_open_nodes_only(tree: TokenTree, name: str, data: st.DataObject) -> None:
    open_nodes = data.draw(st.lists(st.sampled_from(tree.leaves()), unique=True).map(sorted))
    limits = Limits(data.draw(st.integers(1, 30)), 32, data.draw(st.integers(0, 6)))
    chosen = PACERS[name]().extend(tree, open_nodes, limits)
    assert set(chosen) <= set(open_nodes)
    assert all(tree.depth[node] < limits.max_depth for node in chosen)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    return Limits(draw(st.integers(1, 30)), draw(st.integers(1, 6)), draw(st.integers(0, 6)))


def alone(tree: TokenTree, limits: Limits) -> list[int]:
    """Nodes to verify in a pass of one tree."""
    [selected] = nodes_to_verify([tree], [limits], limits.max_nodes, limits.max_branches)
    return selected


@given(trees(), limits())
def test_a_selection_holds_the_root_and_every_parent(tree: TokenTree, limits: Limits) -> None:
    selected = alone(tree, limits)
    assert selected[0] == ROOT
    assert selected == sorted(selected)
    assert all(int(tree.parent[node]) in selected for node in selected[1:])


@given(trees(), limits())
def test_a_selection_stays_within_the_limits(tree: TokenTree, limits: Limits) -> None:
    selected = alone(tree, limits)
    assert len(selected) <= limits.max_nodes
    assert tree.branch_count(selected) <= limits.max_branches
    assert tree.depth[selected].max() <= limits.max_depth


@given(trees(), st.integers(1, 30))
def test_a_selection_has_the_highest_possible_confidence(tree: TokenTree, n: int) -> None:
    selected = alone(tree, Limits(n, 32, 64))
    best = np.sort(tree.cumulative[: len(tree)])[::-1][:n]
    assert np.allclose(np.sort(tree.cumulative[selected])[::-1], best)


@given(st.lists(st.tuples(trees(), limits()), min_size=1, max_size=4), limits())
def test_trees_share_a_pass_by_confidence(
    several: list[tuple[TokenTree, Limits]], together: Limits
) -> None:
    them, each = zip(*several, strict=True)
    most = len(them) + together.max_nodes
    selected = nodes_to_verify(them, each, most, together.max_branches)
    assert sum(map(len, selected)) <= most
    n_branches = sum(tree.branch_count(nodes) for tree, nodes in zip(them, selected, strict=True))
    assert n_branches - len(them) < together.max_branches
    for tree, its, nodes in zip(them, each, selected, strict=True):
        assert set(nodes) <= set(alone(tree, Limits(len(tree), 99, its.max_depth)))
        assert len(nodes) <= its.max_nodes
        assert tree.branch_count(nodes) <= its.max_branches


@given(trees(), trees(), st.integers(2, 40))
def test_trees_of_a_pass_have_the_highest_possible_confidence(
    one: TokenTree, other: TokenTree, n: int
) -> None:
    wide = Limits(99, 99, 99)
    selected = nodes_to_verify([one, other], [wide, wide], n, 99)
    chosen = np.concatenate([one.cumulative[selected[0]], other.cumulative[selected[1]]])
    both = np.concatenate([one.cumulative[1 : len(one)], other.cumulative[1 : len(other)]])
    best = np.append(np.ones(2), np.sort(both)[::-1][: n - 2])
    assert np.allclose(np.sort(chosen)[::-1], best)
