from __future__ import annotations

import math
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.rules.stop_rules import (
    AdaptiveThreshold,
    EntropyWindow,
    FixedLength,
    StopRule,
    entropy,
)
from one_tree import ROOT, OneTree

Rule = TypeVar("Rule", bound=StopRule)

TRUTH = 7
"""The token that the target picks after every node."""


Growing = tuple[OneTree, range, list[int]]


def so_far(tree: OneTree, open_nodes: list[int]) -> Growing:
    return tree, range(len(tree)), open_nodes


def growing(*confidences: float) -> Growing:
    """A root with an open child of each confidence."""
    tree = OneTree(0)
    return so_far(tree, [tree.add(ROOT, token, C) for token, C in enumerate(confidences)])


def after_a_line(rule: Rule, cumulative: float, length: int, n_correct: int) -> Rule:
    """`rule` after a round with one branch, of which so many tokens were right."""
    tree, path, tip = OneTree(0), [ROOT], ROOT
    for n in range(length):
        tip = tree.add(tip, TRUTH if n < n_correct else TRUTH + 1, cumulative ** (1 / length))
        path += [tip] if n < n_correct else []
    return rule.observe(tree, range(len(tree)), path, [TRUTH] * len(path))


def test_the_threshold_fires_when_the_best_branch_falls_below_it() -> None:
    assert AdaptiveThreshold(alpha=0.3).fires(*growing(0.2, 0.29))


def test_the_threshold_waits_while_one_branch_is_above_it() -> None:
    assert not AdaptiveThreshold(alpha=0.3).fires(*growing(0.2, 0.3))


def test_the_threshold_starts_at_one_percent() -> None:
    assert AdaptiveThreshold().alpha == 0.01


def test_a_best_branch_that_was_right_halves_the_threshold() -> None:
    assert after_a_line(AdaptiveThreshold(alpha=0.2), 0.25, 4, 4).alpha == pytest.approx(0.1)


def test_a_best_branch_that_failed_raises_the_threshold_by_the_share_that_was_wrong() -> None:
    """0.1 / 0.25 ** ((4 - 2) / 4) = 0.2."""
    assert after_a_line(AdaptiveThreshold(alpha=0.1), 0.25, 4, 2).alpha == pytest.approx(0.2)


def test_a_round_without_drafts_teaches_the_threshold_nothing() -> None:
    rule = AdaptiveThreshold(alpha=0.1)
    assert after_a_line(rule, 1.0, 0, 0) == rule


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9), st.integers(0, 9)), max_size=60))
def test_no_history_keeps_a_bare_root_from_being_drafted(
    history: list[tuple[float, int, int]],
) -> None:
    """A threshold above the root's confidence of 1 would end drafting for good."""
    rule = AdaptiveThreshold()
    for best_confidence, length, correct in history:
        rule = after_a_line(rule, best_confidence, length, correct)
    assert not rule.fires(*so_far(OneTree(0), [ROOT]))


def test_a_fixed_length_fires_when_a_branch_is_that_long() -> None:
    tree = OneTree(0)
    tip = tree.add(ROOT, 1, 0.5)
    assert not FixedLength(length=2).fires(*so_far(tree, [tip]))
    tip = tree.add(tip, 2, 0.5)
    assert FixedLength(length=2).fires(*so_far(tree, [tip]))


def test_a_full_tree_is_verified_when_nothing_more_can_grow() -> None:
    assert not StopRule().fires(*growing(0.001))


def test_a_fixed_length_counts_what_the_draft_guessed_alone() -> None:
    tree = OneTree(0)
    tip = tree.add(ROOT, 1, 0.9, source="draft")
    for token in range(2, 8):
        tip = tree.add(tip, token, 0.9, source="lookup")
    free = {"lookup"}
    assert not FixedLength(length=2).fires(*so_far(tree, [tip]), free)
    tip = tree.add(tip, 9, 0.9, source="draft")
    assert FixedLength(length=2).fires(*so_far(tree, [tip]), free)


# The entropy window


def line(*probabilities: float) -> Growing:
    """A line of guesses, the last of which is open; a guess's confidence is its probability."""
    tree, node = OneTree(0), ROOT
    for token, p in enumerate(probabilities):
        node = tree.add(node, token, p)
    return so_far(tree, [node])


def test_a_sure_line_goes_on_and_an_unsure_one_ends() -> None:
    assert not EntropyWindow().fires(*so_far(OneTree(0), [ROOT]))
    assert not EntropyWindow().fires(*line(0.99, 0.95))
    unsure = line(0.9, 0.12)
    for token in range(5, 10):  # as improbable as the one that is open
        unsure[0].add(1, token, 0.12)
    assert EntropyWindow().fires(*unsure)


def test_entropy_counts_what_does_not_hang_as_one_guess() -> None:
    assert entropy(line(0.5)[0], ROOT) == pytest.approx(math.log(2))


def test_the_entropy_window_follows_the_entropy_of_rejected_guesses() -> None:
    rule, tree = EntropyWindow(), OneTree(0)
    right = tree.add(ROOT, TRUTH, 0.9)
    tree.add(right, TRUTH + 1, 0.9, probability=0.5)
    rejected = rule.observe(tree, range(3), [ROOT, right], [TRUTH] * 2)
    assert rejected.threshold == pytest.approx((1.0 + math.log(2)) / 2)
    assert rule.observe(tree, range(3), [ROOT], [TRUTH]) == rule
