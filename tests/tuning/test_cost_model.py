"""What the model predicts, and how it learns from a run."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from edgespec.memory.budget import MemoryPlan, SegmentSize
from edgespec.tuning.cost_model import (
    Choice,
    Speeds,
    calibrated,
    compute_places,
    disk_rate,
    predict,
)
from edgespec.tuning.measurements import PassTiming, Text, TreeYield, Written
from edgespec.values import RoundCost
from tuning_lab import DRAFT, MIB

PLAN = MemoryPlan(
    0, (), (SegmentSize("all", 100 * MIB, 100 * MIB),), frozenset(), 0, True, 0, max_nodes=17
)
RESIDENT = replace(PLAN, paged=False)
TREES = (TreeYield(4, 3.0, 0.004), TreeYield(16, 4.0, 0.016))
SPEEDS = Speeds(100 * MIB, {2: ((1.0, 0.1), (17.0, 0.5))}, {(DRAFT, 2): TREES})
PAIR, ALONE = Choice(DRAFT, 2), Choice(None, 2)


def run_of(n_tokens: int, *rounds: RoundCost) -> Written:
    seconds = sum(cost.wall_s for cost in rounds)
    return Written((Text((1,), tuple(range(n_tokens)), seconds),), rounds, 0.0, 0, 0)


def test_a_target_alone_reads_all_that_is_not_pinned_for_a_token():
    assert predict(ALONE, PLAN, SPEEDS).tokens_per_s == pytest.approx(1.0)


def test_while_reads_hide_computing_the_largest_tree_is_best():
    found = predict(PAIR, PLAN, SPEEDS)
    assert (found.n_nodes, found.limit) == (16, "storage")
    assert found.tokens_per_s == pytest.approx(4.0 / 1.016)


def test_the_plan_keeps_the_tree_as_small_as_its_buffers():
    assert predict(PAIR, replace(PLAN, max_nodes=9), SPEEDS).n_nodes == 8


def test_a_cap_keeps_the_tree_small():
    assert predict(Choice(DRAFT, 2, draft_max=4), PLAN, SPEEDS).n_nodes == 4


def test_where_nodes_cost_more_than_they_bring_none_are_drafted():
    dear = replace(SPEEDS, compute={2: ((1.0, 0.1), (2.0, 1.0))})
    found = predict(PAIR, RESIDENT, dear)
    assert (found.n_nodes, found.limit) == (0, "computing")


def test_a_ring_fills_while_the_draft_guesses():
    ringed = replace(PLAN, ring_bytes=MIB)
    assert predict(PAIR, ringed, SPEEDS).tokens_per_s > predict(PAIR, PLAN, SPEEDS).tokens_per_s


def test_computing_is_what_no_pass_waited_for():
    passes = [PassTiming(1, 0.5, 0.4, 1), PassTiming(1, 0.7, 0.4, 1), PassTiming(4, 0.6, 0.0, 1)]
    assert compute_places(passes) == ((1.0, pytest.approx(0.2)), (4.0, pytest.approx(0.6)))


def test_passes_that_waited_tell_how_fast_they_read():
    waited, computed = PassTiming(1, 2.0, 1.0, 100), PassTiming(9, 4.0, 0.0, 100)
    assert disk_rate([waited, computed], 70.0) == 50.0
    assert disk_rate([computed], 70.0) == 70.0
    assert disk_rate([], inf) == inf


def test_a_run_tells_how_many_guesses_stand():
    cost = RoundCost(5, 4, 4, 1, 0.004, 1.0, 0.5, 1.004)
    assert calibrated(PAIR, PLAN, SPEEDS, run_of(50, *[cost] * 10)).gain == pytest.approx(2.0)


def test_what_was_learnt_from_a_run_predicts_that_run():
    cost = RoundCost(2, 1, 6, 1, 0.02, 1.3, 0.5, 1.4)
    run = run_of(20, *[cost] * 10)
    learnt = calibrated(PAIR, PLAN, SPEEDS, run)
    assert predict(PAIR, PLAN, learnt).tokens_per_s == pytest.approx(run.tokens_per_s)


def test_what_was_learnt_before_is_forgotten():
    cost = RoundCost(2, 1, 6, 1, 0.02, 1.3, 0.5, 1.4)
    run = run_of(20, *[cost] * 10)
    once = calibrated(PAIR, PLAN, SPEEDS, run)
    assert calibrated(PAIR, PLAN, once, run) == once


def test_a_run_without_rounds_teaches_nothing():
    assert calibrated(PAIR, PLAN, SPEEDS, run_of(0)) == SPEEDS


def test_a_text_that_went_fast_counts_for_no_more_than_another():
    fast, slow = Text((1,), tuple(range(90)), 1.0), Text((1,), tuple(range(10)), 1.0)
    assert Written((fast, slow), (), 0.0, 0, 0).tokens_per_s == pytest.approx(18.0)
