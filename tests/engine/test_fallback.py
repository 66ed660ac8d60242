from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.fallback import (
    FALLBACKS,
    AdaptiveThreshold,
    FixedLength,
    FullTree,
    MarginalRate,
    RoundSoFar,
)
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.pacer import Worth
from edgespec.engine.pass_cost import PassCost
from edgespec.tree import ROOT, TokenTree

OUTCOME = RoundOutcome(
    n_tokens=1,
    accepted=0,
    drafted=4,
    verified=4,
    best_confidence=0.25,
    best_length=4,
    best_correct=4,
    provisional_drafted=0,
    provisional_kept=0,
    draft_steps=4,
    draft_s=0.1,
    passes=1,
    pass_s=1.0,
    stall_s=0.0,
    wall_s=1.1,
)


def growing(*confidences: float) -> RoundSoFar:
    """A root with an open child of each confidence."""
    tree = TokenTree(0)
    return RoundSoFar(tree, [tree.add(ROOT, token, C) for token, C in enumerate(confidences)])


def test_the_threshold_fires_when_the_best_branch_falls_below_it() -> None:
    assert AdaptiveThreshold(alpha=0.3).fires(growing(0.2, 0.29))


def test_the_threshold_waits_while_one_branch_is_above_it() -> None:
    assert not AdaptiveThreshold(alpha=0.3).fires(growing(0.2, 0.3))


def test_the_threshold_fires_when_nothing_can_grow() -> None:
    assert AdaptiveThreshold().fires(RoundSoFar(TokenTree(0), []))


def test_the_threshold_starts_at_one_percent() -> None:
    assert AdaptiveThreshold().alpha == 0.01


def test_a_best_branch_that_was_right_halves_the_threshold() -> None:
    assert AdaptiveThreshold(alpha=0.2).observe(OUTCOME).alpha == pytest.approx(0.1)


def test_a_best_branch_that_failed_raises_the_threshold_by_the_share_that_was_wrong() -> None:
    """0.1 / 0.25 ** ((4 - 2) / 4) = 0.2."""
    outcome = replace(OUTCOME, best_correct=2)
    assert AdaptiveThreshold(alpha=0.1).observe(outcome).alpha == pytest.approx(0.2)


def test_a_round_without_drafts_teaches_the_threshold_nothing() -> None:
    outcome = replace(OUTCOME, best_length=0, best_correct=0, best_confidence=1.0)
    assert AdaptiveThreshold(alpha=0.1).observe(outcome) == AdaptiveThreshold(alpha=0.1)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9), st.integers(0, 9)), max_size=60))
def test_no_history_keeps_a_bare_root_from_being_drafted(
    history: list[tuple[float, int, int]],
) -> None:
    """A threshold above the root's confidence of 1 would end drafting for good."""
    rule = AdaptiveThreshold()
    for best_confidence, length, correct in history:
        rule = rule.observe(
            replace(
                OUTCOME,
                best_confidence=best_confidence,
                best_length=length,
                best_correct=min(correct, length),
            )
        )
    assert not rule.fires(RoundSoFar(TokenTree(0), [ROOT]))


def test_a_fixed_length_fires_when_a_branch_is_that_long() -> None:
    tree = TokenTree(0)
    tip = tree.add(ROOT, 1, 0.5)
    assert not FixedLength(length=2).fires(RoundSoFar(tree, [tip]))
    tip = tree.add(tip, 2, 0.5)
    assert FixedLength(length=2).fires(RoundSoFar(tree, [tip]))


def test_a_full_tree_is_verified_when_nothing_more_can_grow() -> None:
    assert not FullTree().fires(growing(0.001))


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_fallback_registers_under_its_own_name(name: str) -> None:
    assert FALLBACKS[name].name == name


# Marginal rate: a step costs 10 ms, computing a pass 70 ms and 30 ms a node.

MARGINAL = replace(OUTCOME, draft_steps=1, draft_s=0.01, accepted=2)


def marginal(stall_s: float) -> MarginalRate:
    rule = MarginalRate()
    for verified in (3, 7, 11, 5):
        compute_s = 0.07 + 0.03 * (1 + verified)
        pass_s = stall_s + compute_s
        rule = rule.observe(replace(MARGINAL, verified=verified, pass_s=pass_s, stall_s=stall_s))
    return rule


def test_the_marginal_rule_drafts_on_until_it_has_seen_a_pass() -> None:
    assert not MarginalRate().fires(growing(0.01))


def test_the_marginal_rule_fills_the_tree_while_passes_wait_for_storage() -> None:
    assert not marginal(stall_s=1.0).fires(growing(0.9, 0.05))


def test_the_marginal_rule_keeps_trees_small_while_the_target_computes() -> None:
    assert marginal(stall_s=0.0).fires(growing(0.9, 0.05)) is False
    assert marginal(stall_s=0.0).fires(growing(0.3, 0.3, 0.2)) is True


def test_only_nodes_that_are_worth_their_computing_are_verified() -> None:
    """Tokens a second: 1 / 0.10 alone, 1.9 / 0.13 with the first guess, 1.95 / 0.16 with both."""
    assert marginal(stall_s=0.0).n_worth_verifying(growing(0.9, 0.05)) == 2
    assert marginal(stall_s=1.0).n_worth_verifying(growing(0.9, 0.05)) == 3


def test_the_marginal_rule_drafts_as_long_as_the_draft_is_right() -> None:
    right, wrong = marginal(stall_s=0.0), marginal(stall_s=0.0)
    for _ in range(20):
        wrong = wrong.observe(replace(MARGINAL, accepted=0, missed=True, pass_s=0.2))
        right = right.observe(replace(MARGINAL, accepted=2, pass_s=0.2))
    assert wrong.fires(growing(0.9))
    assert not right.fires(growing(0.9))


def test_nodes_are_worth_growing_by_what_computing_them_costs() -> None:
    """30 ms a node, and rounds that bring about three tokens a second."""
    rule = marginal(stall_s=0.0)
    worth = rule.worth_growing()
    assert worth.least_confidence == pytest.approx(
        0.5 * 0.03 * rule.tokens / rule.spent_s, rel=0.01
    )
    assert rule.tokens / rule.spent_s == pytest.approx(3.4, rel=0.1)
    assert worth.n_hidden == 0


def test_nodes_that_reads_hide_are_all_worth_growing() -> None:
    rule = marginal(stall_s=0.0)
    for verified in (3, 7, 11, 5):
        compute_s = 0.07 + 0.03 * (1 + verified)
        rule = rule.observe(replace(MARGINAL, verified=verified, pass_s=compute_s, read_s=0.385))
    assert rule.worth_growing().n_hidden == 10


def test_all_nodes_are_worth_growing_before_a_round_was_seen() -> None:
    assert MarginalRate().worth_growing() == Worth()


def test_another_run_knows_what_passes_cost_here() -> None:
    taught = marginal(stall_s=0.0)
    begun = MarginalRate().recalled(taught.numbers())
    assert begun.cost.per_node_s == pytest.approx(0.03, rel=0.05)
    assert seconds(begun.cost, 9) == pytest.approx(0.34, rel=0.01)
    assert begun.fires(growing(0.3, 0.3, 0.2)) and not begun.fires(growing(0.9, 0.05))


def test_what_another_run_saw_counts_for_a_few_passes() -> None:
    begun = MarginalRate().recalled(marginal(stall_s=0.0).numbers())
    for verified in (3, 7, 11, 5) * 3:
        pass_s = 0.14 + 0.06 * (1 + verified)
        begun = begun.observe(replace(MARGINAL, verified=verified, pass_s=pass_s))
    assert begun.cost.per_node_s == pytest.approx(0.06, rel=0.1)


NAMES = tuple(marginal(stall_s=0.0).numbers())


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.floats(allow_nan=False, allow_infinity=False), max_size=9
    )
)
def test_no_numbers_make_a_rule_that_cannot_decide(numbers: dict[str, float]) -> None:
    rule = MarginalRate().recalled(numbers).observe(MARGINAL)
    cost = rule.cost.seconds(np.arange(1, 50))
    assert np.isfinite(cost).all() and (cost >= 0).all()
    assert 1 <= rule.n_worth_verifying(growing(0.9, 0.05)) <= 3
    assert 0 < rule.hits / rule.tries <= 1
    assert np.isfinite(rule.worth_growing().least_confidence)


@pytest.mark.parametrize("name", sorted(FALLBACKS))
def test_every_rule_takes_what_it_told(name: str) -> None:
    rule = FALLBACKS[name]()
    assert rule.recalled(rule.numbers()) == rule


def passes(*measured: tuple[int, float, float]) -> PassCost:
    """After passes of these nodes, wall-clock and stalled seconds."""
    cost = PassCost()
    for one in measured:
        cost = cost.with_pass(*one)
    return cost


def seconds(cost: PassCost, n_nodes: int) -> float:
    return float(cost.seconds(np.array([n_nodes]))[0])


def test_the_cost_of_a_node_is_the_slope_over_passes_of_different_size() -> None:
    cost = passes(*((n_nodes, 0.5 + 0.1 * n_nodes, 0.0) for n_nodes in (2, 5, 9, 17)))
    assert cost.per_node_s == pytest.approx(0.1, rel=0.01)
    assert seconds(cost, 7) == pytest.approx(1.2, rel=0.01)


def test_a_node_costs_no_more_than_its_share_of_passes_of_one_size() -> None:
    assert passes((8, 2.0, 0.0), (8, 2.0, 0.0)).per_node_s == pytest.approx(0.25)


def test_a_further_node_is_tried_where_only_single_ones_were_seen() -> None:
    """Taken to cost a whole pass, as its share would be, it never would."""
    assert passes((1, 2.0, 0.0), (1, 2.0, 0.0)).per_node_s == pytest.approx(0.5)


def test_a_single_node_does_not_lie_on_the_line_of_several() -> None:
    """Kernels for one row: 58 ms alone, 132 ms and 12 ms a node from two nodes on."""
    cost = passes((1, 0.058, 0.0), *((n, 0.132 + 0.012 * n, 0.0) for n in (2, 4, 8)))
    assert seconds(cost, 1) == pytest.approx(0.058)
    assert seconds(cost, 12) == pytest.approx(0.276, rel=0.02)


def test_a_tree_grows_past_the_sizes_that_do_not_pay() -> None:
    """Two nodes cost more than their tokens are worth, eight do not."""
    rule = MarginalRate(cost=passes((1, 0.058, 0.0), (2, 0.156, 0.0), (8, 0.228, 0.0)))
    assert rule.n_worth_verifying(growing(0.9)) == 1
    assert not rule.fires(growing(0.9))
    tree = TokenTree(0)
    end = ROOT
    for token in range(7):
        end = tree.add(end, token, 0.95)
    assert rule.n_worth_verifying(RoundSoFar(tree, [end])) == 8


def test_nodes_are_free_until_their_computing_takes_as_long_as_the_reads() -> None:
    """Reads of 1 s, 0.1 s of computing and 0.02 s a node: 45 nodes are hidden."""
    cost = passes(*((n, 1.0, 1.0 - 0.1 - 0.02 * n) for n in (1, 9, 17, 25)))
    assert seconds(cost, 40) == seconds(cost, 1) == pytest.approx(1.0)
    assert seconds(cost, 70) == pytest.approx(1.5, rel=0.01)


def mixture(*sizes: int) -> PassCost:
    """After passes of these sizes over a mixture that uses a quarter of its experts: 1 s for one
    node's, 20 ms of computing a node."""
    cost = PassCost(used_share=0.25)
    for n_nodes in sizes:
        read_s = (1 - 0.75 ** (n_nodes**0.75)) / 0.25
        cost = cost.with_pass(n_nodes, read_s + 0.02 * n_nodes, 0.0, read_s)
    return cost


def test_a_further_node_costs_less_the_more_experts_are_chosen_already() -> None:
    cost = mixture(1, 2, 5, 9)
    assert seconds(cost, 16) == pytest.approx(3.6 + 0.32, rel=0.1)
    assert cost.added_s(2) > cost.added_s(8) > cost.added_s(20) > 0


def test_a_tree_of_a_mixture_grows_past_the_sizes_that_do_not_pay() -> None:
    """Two nodes take 1.7 times as long as one, sixteen 3.6 times: so likely guesses go on."""
    rule = MarginalRate(cost=mixture(1, 1, 2, 2), hits=9.0, tries=10.0)
    tree = TokenTree(0)
    end = ROOT
    for token in range(15):
        end = tree.add(end, token, 0.9)
        assert not rule.fires(RoundSoFar(tree, [end])) or token > 8
    assert rule.n_worth_verifying(RoundSoFar(tree, [end])) > 8


def test_a_pass_that_hardly_waited_shows_what_reads_take_at_most() -> None:
    cost = passes((1, 1.0, 0.8), (9, 0.6, 0.0))
    assert cost.read_s == 0.6


def test_reads_beside_computing_take_longer_and_hide_no_more_nodes() -> None:
    """Of 40 ms alone, and of twice that beside a pass of many nodes, which never waits."""
    cost = PassCost().with_pass(1, 0.04, 0.025, 0.0, 0.04)
    for n_nodes in (8, 16, 24, 32):
        cost = cost.with_pass(n_nodes, 0.01 + 0.005 * n_nodes, 0.0, 0.0, 0.08)
    assert cost.read_s == pytest.approx(0.04)
    assert cost.with_pass(8, 0.08, 0.03, 0.0, 0.08).read_s > 0.05


def test_a_fixed_length_counts_what_the_draft_guessed_alone() -> None:
    tree = TokenTree(0)
    tip = tree.add(ROOT, 1, 0.9, source="draft")
    for token in range(2, 8):
        tip = tree.add(tip, token, 0.9, source="lookup")
    so_far = RoundSoFar(tree, [tip], free_sources={"lookup"})
    assert not FixedLength(length=2).fires(so_far)
    tip = tree.add(tip, 9, 0.9, source="draft")
    assert FixedLength(length=2).fires(replace(so_far, open_nodes=[tip]))
