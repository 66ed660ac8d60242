"""Choices of the round planner where costs and chances are known, and what rounds teach it."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.engine.planning.credit import LATER_SHARE
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.values import PassReport
from planner_cases import (
    OUTCOME,
    RESIDENT,
    begun,
    curve,
    line,
    planner,
    restored,
    rounds,
    with_costs,
    with_credit,
)


def test_a_line_of_seven_is_seen_from_a_bare_root_though_one_guess_does_not_pay() -> None:
    value = planner()
    assert 1.97 / 0.076 < 1 / 0.040 + 1  # one guess hardly pays
    assert value.choose()
    assert value.grow_on(math.inf, line())


def test_a_step_that_adds_several_nodes_costs_once() -> None:
    value = planner()
    value = with_costs(value, seen_step_s=0.04)
    assert not value.grow_on(math.inf, line())
    assert value.grow_on(math.inf, replace(line(), step_depth=7))


def test_seven_likely_guesses_are_verified_and_seven_poor_ones_are_not() -> None:
    value = planner()
    assert value.best(math.inf, line(*[0.98] * 7)).n_rows == 8
    assert value.best(math.inf, line(*[0.4] * 7)).n_rows == 1


def test_rows_that_reads_hide_are_verified_however_unlikely() -> None:
    value = planner(curve(*RESIDENT, read_s=0.5))
    assert value.best(math.inf, line(0.9, 0.1, 0.1, 0.1)).n_rows == 5


def test_drafting_goes_on_while_reads_hide_rows_and_ends_when_they_do_not() -> None:
    hidden = planner(curve(*RESIDENT, read_s=0.5))
    assert hidden.grow_on(math.inf, line(0.9, 0.9, 0.9))
    assert not hidden.grow_on(math.inf, line(*[0.5] * 20))


def test_looking_far_ahead_asks_the_curve_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all points are computed once: a round chooses several times among nine and more."""
    n_asked, computing = 0, PassCurve.compute_s

    def compute_s(known: PassCurve, n_rows: float | NDArray[Any]) -> NDArray[np.float64]:
        nonlocal n_asked
        n_asked += np.ndim(n_rows)
        return computing(known, n_rows)

    monkeypatch.setattr(PassCurve, "compute_s", compute_s)
    value = planner()
    plan, counts = math.inf, []
    for horizons in ((1,), RoundPlanner.horizons):
        monkeypatch.setattr(RoundPlanner, "horizons", horizons)
        n_asked = 0
        value.grow_on(plan, line(0.9))
        counts.append(n_asked)
    assert counts == [1, 1]


def test_drafting_that_paid_goes_on_beside_a_pass_that_waits_for_reads() -> None:
    value = planner(curve(*RESIDENT, read_s=0.5))
    assert not value.drafts_beside(8)
    value = with_credit(value, tokens=40.0, plain_tokens=20.0)
    assert value.drafts_beside(8)
    assert not value.drafts_beside(40)
    assert not replace(value, may_overlap=False).drafts_beside(8)


def test_drafting_beside_a_pass_that_computes_all_the_time_is_not_tried() -> None:
    assert not with_credit(planner(), tokens=40.0, plain_tokens=20.0).drafts_beside(1)


def test_a_round_teaches_costs_and_gains() -> None:
    value = rounds(begun(), OUTCOME)
    known = value.costs
    assert known.step_s == pytest.approx(0.002)
    assert known.overhead_s == pytest.approx(0.007)
    assert value.credit.lost == pytest.approx(0.175 / 0.040 - 3 * (1 + LATER_SHARE))
    assert value.credit.plain_tokens == pytest.approx(0.175 / 0.040)


def test_a_round_in_which_the_draft_read_the_text_teaches_what_its_first_step_takes_alone() -> None:
    reading = replace(OUTCOME, reading_s=0.05, wall_s=0.25)
    value = rounds(begun(draft_share=0.05), reading)
    assert value.costs.step_s == value.costs.overhead_s == pytest.approx(0.05 * 0.040)
    dear = replace(reading, growing_s=0.032)
    value = rounds(begun(draft_share=0.05), dear)
    assert value.costs.step_s == pytest.approx(0.004)
    assert rounds(value, reading).costs.step_s == value.costs.step_s


def test_another_run_begins_where_one_left_off() -> None:
    taught = rounds(begun(), *[OUTCOME] * 30)
    value = restored(taught.state())
    assert value.credit.speedup == pytest.approx(taught.credit.speedup)


@given(
    st.dictionaries(
        st.sampled_from(tuple(rounds(RoundPlanner(), OUTCOME).state())),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=9,
    )
)
def test_no_numbers_make_a_value_that_cannot_decide(numbers: dict[str, float]) -> None:
    value = rounds(restored(numbers), OUTCOME)
    assert math.isfinite(value.rate) and math.isfinite(value.credit.left)
    assert 1 <= value.best(math.inf, line(0.9, 0.3)).n_rows <= 3


def test_a_reading_that_other_work_held_up_is_charged_in_part() -> None:
    """It is not known yet how long the draft takes to read, but for its size."""
    value = begun(draft_share=0.05, prompt_token_s=0.02)
    value = with_credit(value, unread=100)
    assert value.costs.reading_s(100) == pytest.approx(0.1)
    quick = deepcopy(value)
    value.see_reading(0.9)
    assert value.costs.reading_s(100) == pytest.approx(0.3)
    assert value.credit.lost == pytest.approx(0.3 / 0.04)
    quick.see_reading(0.05)
    assert quick.credit.lost == pytest.approx(0.05 / 0.04)


def test_rows_of_prompts_are_not_charged_to_guesses() -> None:
    known = curve((1, 0.04), (8, 0.32), (40, 1.6))
    shared = planner(known)
    shared.share_pass(1, n_prompt_rows=32)
    pass_s = known.second(35)
    report = PassReport(wall_s=pass_s)
    outcome = replace(OUTCOME, n_rows=35, verified=2, report=report, growing_s=0.0)
    alone_s = pass_s - known.second(33) + known.second(1)
    lost = rounds(shared, replace(outcome, wall_s=pass_s)).credit.lost
    assert lost == pytest.approx(alone_s / shared.costs.plain_s() - 3, abs=0.06)


def test_rounds_of_few_texts_say_nothing_about_rounds_of_many() -> None:
    value = with_credit(planner(), tokens=20.0, plain_tokens=9.0)
    value.share_pass(1, n_prompt_rows=5)
    assert value.credit.plain_tokens > 0
    value.share_pass(2)
    assert value.credit.plain_tokens == 0


def test_guesses_whose_experts_are_in_memory_save_no_reads() -> None:
    experts = ExpertStalls(1 / 16, all_experts_s=1.6, n_first_rows=99)
    value = planner(replace(curve(*RESIDENT), experts=experts))

    def lost_s(first_row_stall_s: float) -> float:
        report = PassReport(0.4, choice_stall_s=0.2, first_row_stall_s=first_row_stall_s)
        after = rounds(value, replace(OUTCOME, report=report, wall_s=0.4))
        known = after.costs
        token_s = known.plain_s() + first_row_stall_s - known.curve.experts.seconds(1)
        return (after.credit.lost + OUTCOME.n_tokens) * token_s

    assert lost_s(0.02) == pytest.approx(lost_s(0.1), rel=0.1)


def test_more_texts_than_rows_are_not_guessed_for() -> None:
    value = replace(begun(curve(*RESIDENT, read_s=0.5), draft_share=0.05), max_rows=3)
    value.share_pass(4)
    assert not value.choose()
