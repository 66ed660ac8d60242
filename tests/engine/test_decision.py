"""Choices of the round planner where costs and chances are known, and its risk where not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.engine.chances import Chances
from edgespec.engine.decision import RoundPlan, RoundPlanner
from edgespec.engine.experience import Experience, TextAccount
from edgespec.engine.outcome import PathNode, Rehearsed, RoundOutcome
from edgespec.engine.pass_curve import PassCurve
from edgespec.engine.stop_rules import RoundSoFar
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport

RESIDENT = (*[(1, 0.040)] * 3, (2, 0.074), (8, 0.160), (13, 0.233))
"""A pair of issue 21: one row costs 40 ms, a second one 34 more, eight together 160."""
STEP_S = 0.002


def curve(*measured: tuple[int, float], read_s: float = 0.0) -> PassCurve:
    known = PassCurve(read_s=read_s)
    for n_rows, seconds in measured:
        stall_s = max(0.0, read_s - seconds)
        report = PassReport(seconds + stall_s, stall_s, read_s=read_s)
        known = known.with_pass(n_rows, report, drafted_beside=False)
    return known


def planner(right: float = 0.8, known: PassCurve | None = None) -> RoundPlanner:
    """It has seen thirty guesses that were right so often."""
    chances = Chances()
    for n in range(30):
        was_right = int((n + 1) * right) > int(n * right)
        chances = chances.with_node(PathNode(False, right, was_right, was_right))
    experience = Experience(
        known or curve(*RESIDENT), chances, seen_step_s=STEP_S, seen_overhead_s=STEP_S
    )
    return RoundPlanner(experience, TextAccount(room=99))


def begun(passes: PassCurve | None = None, room: int = 99, **known: float) -> RoundPlanner:
    """Passes have been seen, guesses have not."""
    return RoundPlanner(Experience(passes or curve(*RESIDENT), **known), TextAccount(room=room))


def line(*confidences: float) -> RoundSoFar:
    tree, end = TokenTree(0), ROOT
    for token, confidence in enumerate(confidences):
        end = tree.add(end, token, confidence)
    return RoundSoFar(tree, [end])


def with_account(value: RoundPlanner, **changed: float) -> RoundPlanner:
    return replace(value, account=replace(value.account, **changed))


def with_experience(value: RoundPlanner, **changed: float) -> RoundPlanner:
    return replace(value, experience=replace(value.experience, **changed))


def unlimited(value: RoundPlanner) -> RoundPlan:
    return replace(value.plan(), guesses=True, credit_s=math.inf)


def test_a_line_of_seven_is_seen_from_a_bare_root_though_one_guess_does_not_pay() -> None:
    value = planner(0.97)
    assert 1.97 / 0.076 < 1 / 0.040 + 1  # one guess hardly pays
    assert value.plan().guesses
    assert value.grows_on(unlimited(value), line())


def test_a_step_that_adds_several_nodes_costs_once() -> None:
    value = planner(0.97)
    value = with_experience(value, seen_step_s=0.04)
    assert not value.grows_on(unlimited(value), line())
    assert value.grows_on(unlimited(value), replace(line(), step_depth=7))


def test_seven_likely_guesses_are_verified_and_seven_poor_ones_are_not() -> None:
    value = planner(0.97)
    assert value.best(unlimited(value), line(*[0.98] * 7)).n_rows == 8
    assert value.best(unlimited(value), line(*[0.4] * 7)).n_rows == 1


def test_rows_that_reads_hide_are_verified_however_unlikely() -> None:
    value = planner(0.8, curve(*RESIDENT, read_s=0.5))
    assert value.best(unlimited(value), line(0.9, 0.1, 0.1, 0.1)).n_rows == 5


def test_drafting_goes_on_while_reads_hide_rows_and_ends_when_they_do_not() -> None:
    hidden = planner(0.8, curve(*RESIDENT, read_s=0.5))
    assert hidden.grows_on(unlimited(hidden), line(0.9, 0.9, 0.9))
    assert not hidden.grows_on(unlimited(hidden), line(*[0.5] * 20))


def test_looking_far_ahead_asks_the_curve_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all points are computed once: a round chooses four times among nine and more."""
    n_asked, computing = 0, PassCurve.compute_s

    def compute_s(known: PassCurve, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        nonlocal n_asked
        n_asked += 1
        return computing(known, n_rows)

    monkeypatch.setattr(PassCurve, "compute_s", compute_s)
    value = planner(0.97)
    plan, counts = unlimited(value), []
    for horizons in ((1,), RoundPlanner.horizons):
        monkeypatch.setattr(RoundPlanner, "horizons", horizons)
        n_asked = 0
        value.imagined(plan, line(0.9))
        counts.append(n_asked)
    assert counts == [2, 2]


def test_nothing_is_tried_before_a_pass_was_seen() -> None:
    assert not RoundPlanner(account=TextAccount(room=99)).plan().guesses


def test_a_draft_that_is_never_right_is_left_out() -> None:
    assert not planner(0.0).plan().guesses


def test_a_round_without_a_promise_may_cost_the_credit() -> None:
    value = begun(curve(*RESIDENT, read_s=0.5), draft_share=0.05)
    plan = value.plan()
    assert plan.guesses
    assert plan.credit_s == value.credit_s == pytest.approx(0.02 * 32 * 0.5)


def test_no_round_is_tried_whose_credit_does_not_cover_one_guess() -> None:
    value = begun(draft_share=0.05)
    assert value.credit_s < 0.034
    assert not value.plan().guesses
    assert with_account(value, elapsed_s=4.0).plan().guesses


def test_a_text_that_has_spent_its_credit_guesses_no_more() -> None:
    value = begun(curve(*RESIDENT, read_s=0.5), draft_share=0.05)
    assert not with_account(value, saved_s=-0.02 * 32 * 0.5).plan().guesses


def test_credit_grows_with_time_and_with_what_guesses_saved() -> None:
    value = begun()
    later = with_account(value, elapsed_s=100.0)
    assert later.credit_s == pytest.approx(2.0)
    assert with_account(later, saved_s=5.0).credit_s == pytest.approx(7.0)


def test_untried_guesses_are_verified_as_far_as_the_credit_covers_them() -> None:
    value = begun(draft_share=0.05)
    plan = RoundPlan(True, value.credit_s)
    assert value.best(plan, line(*[0.98] * 7)).n_rows == 1
    assert value.best(replace(plan, credit_s=1.0), line(*[0.98] * 7)).n_rows == 8


def test_a_draft_reads_a_long_text_only_where_that_pays() -> None:
    proven = with_experience(
        planner(0.97), rounds=9.0, claimed=40.0, plain_tokens=37.5, seen_token_read_s=0.001
    )
    assert proven.plan().guesses
    assert not with_account(proven, unread=5000).plan().guesses


def test_drafting_goes_on_beside_a_pass_where_the_pass_waits_for_reads() -> None:
    value = with_experience(planner(0.8, curve(*RESIDENT, read_s=0.5)), kept_s=0.01)
    assert value.drafts_beside(8)
    assert not value.drafts_beside(40)
    assert not replace(value, may_overlap=False).drafts_beside(8)


def test_drafting_beside_a_pass_that_computes_all_the_time_is_not_tried() -> None:
    assert not with_experience(planner(), kept_s=0.01).drafts_beside(1)


OUTCOME = RoundOutcome(
    n_tokens=3,
    accepted=2,
    drafted=4,
    verified=7,
    best_confidence=0.5,
    best_length=4,
    best_correct=2,
    provisional_drafted=0,
    provisional_kept=0,
    draft_steps=4,
    draft_s=0.012,
    passes=1,
    pass_s=0.16,
    stall_s=0.0,
    wall_s=0.175,
    guessed=True,
    growing_s=0.008,
    expected=2.5,
    expected_s=0.17,
    path_nodes=(
        PathNode(False, 0.9, True, True),
        PathNode(True, 0.95, True, True),
        PathNode(True, 0.9, False, False),
    ),
)


def test_a_round_teaches_costs_and_chances() -> None:
    value = begun().observe(OUTCOME)
    known = value.experience
    assert known.step_s == pytest.approx(0.002)
    assert known.overhead_s == pytest.approx(0.007)
    assert known.chances.hits == pytest.approx((0.9025, 0.95))
    assert known.chances.tries == pytest.approx((0.9025, 1.95))
    assert value.account.saved_s == pytest.approx(3 * 0.040 - 0.175)


def test_a_round_in_which_the_draft_read_the_text_teaches_nothing_of_later_ones() -> None:
    known = (
        begun(draft_share=0.05).observe(replace(OUTCOME, reading_s=0.05, wall_s=0.25)).experience
    )
    assert known.step_s == known.overhead_s == pytest.approx(0.05 * 0.040)


def test_another_run_begins_where_one_left_off_and_doubts_it_soon() -> None:
    taught = begun()
    for _ in range(30):
        taught = taught.observe(OUTCOME)
    value = RoundPlanner(account=TextAccount(room=99)).load_state_dict(taught.state_dict())
    assert value.experience.rate == pytest.approx(taught.experience.rate, rel=0.1)
    assert sum(value.experience.chances.tries) <= 6.001
    assert value.experience.rounds <= 6.001


@given(
    st.dictionaries(
        st.sampled_from(tuple(RoundPlanner().observe(OUTCOME).state_dict())),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=9,
    )
)
def test_no_numbers_make_a_value_that_cannot_decide(numbers: dict[str, float]) -> None:
    value = RoundPlanner(account=TextAccount(room=99)).load_state_dict(numbers).observe(OUTCOME)
    assert math.isfinite(value.experience.rate)
    assert 1 <= value.best(unlimited(value), line(0.9, 0.3)).n_rows <= 3


# A draft that would have to read a long text first is tried on the end of it


def cold(n_unread: int) -> RoundPlanner:
    """Sixteen tokens into a text that the draft has not read."""
    value = begun(room=400, draft_share=0.05, prompt_token_s=0.015)
    return with_account(value, unread=n_unread, n_tokens=16)


def test_a_draft_that_must_read_much_is_first_tried_on_the_end_of_the_text() -> None:
    assert not cold(200).plan().guesses
    assert cold(200).plan().n_rehearsed == 16


def test_a_draft_that_has_read_most_of_a_text_is_tried_on_what_it_reads() -> None:
    assert cold(12).plan().n_rehearsed == 12
    told = [Rehearsed(0.9, True, 0.9, True)] * 11
    plain = replace(OUTCOME, guessed=False, n_tokens=1, verified=0, rehearsed=told)
    assert cold(12).observe(plain).account.unread == 1
    assert cold(50).observe(plain).account.unread == 51


def test_a_reading_that_other_work_held_up_is_charged_in_part() -> None:
    """It is not known yet how long the draft takes to read, but for its size."""
    value = begun(draft_share=0.05, prompt_token_s=0.02)
    value = with_account(value, unread=100)
    assert value.experience.reading_s(100) == pytest.approx(0.1)
    read = value.observe_reading(0.9)
    assert read.experience.reading_s(100) == pytest.approx(0.3)
    assert read.account.saved_s == pytest.approx(-0.3)
    assert value.observe_reading(0.05).account.saved_s == pytest.approx(-0.05)


def test_a_draft_that_is_right_more_often_than_it_says_is_believed_more() -> None:
    modest = planner()
    told = Chances((27.0, 0.0), (27.0, 0.0), (30.0, 0.0), claimed=15.0)
    modest = replace(modest, experience=replace(modest.experience, chances=told))
    likely, plan = line(*[0.55] * 7), unlimited(modest)
    assert modest.best(plan, likely).n_rows == 8
    assert planner(0.55).best(plan, likely).n_rows < 8


def test_what_grows_beside_a_pass_saves_half_of_it_at_most() -> None:
    """A step that other work made slow made rounds shorter than nothing."""
    value = with_experience(planner(0.8, curve(*RESIDENT, read_s=0.5)), kept_s=9.0)
    pass_s = value.experience.curve.second(2)
    assert value.best(unlimited(value), line(0.9)).seconds >= 0.5 * pass_s


def test_hits_in_other_texts_prove_nothing_about_this_one() -> None:
    value = planner()
    assert value.experience.chances.text_evidence > 0.9
    assert value.begin_text(0, 99).experience.chances.text_evidence == 0
    assert value.begin_text(0, 99).experience.chances.hits == value.experience.chances.hits


@pytest.mark.parametrize("is_right", [True, False])
def test_a_draft_reads_the_text_if_it_would_have_guessed_its_end(is_right: bool) -> None:
    tried = [Rehearsed(0.97, is_right, 0.99, is_right)] * 15
    outcome = replace(OUTCOME, guessed=False, n_tokens=1, verified=0, pass_s=0.04, wall_s=0.05)
    value = cold(200).observe(replace(outcome, reading_s=0.01, draft_s=0.01, rehearsed=tried))
    assert value.plan().guesses == is_right
    assert value.account.saved_s == pytest.approx(-0.01)


@pytest.mark.parametrize("is_right", [True, False])
def test_guesses_at_nothing_are_tried_on_what_comes_without_guesses(is_right: bool) -> None:
    """A text that repeats itself went on without guesses, since a trial was too dear."""
    found = [Rehearsed(0.97, is_right, 0.99, is_right)]
    plain = replace(OUTCOME, guessed=False, n_tokens=1, verified=0, pass_s=0.04, wall_s=0.05)
    value = cold(200)
    chances = value.experience.chances
    for _ in range(8):
        assert not value.plan().guesses
        value = value.observe(replace(plain, found=found))
    assert value.plan().guesses == is_right
    if not is_right:
        assert value.experience.chances.calibration == pytest.approx(chances.calibration)


def test_what_guesses_saved_one_text_is_worth_less_where_texts_share_passes() -> None:
    one = replace(planner(), account=TextAccount(room=99, elapsed_s=1.0, saved_s=0.8))
    four = one.sharing(4, n_prompt_rows=0)
    share = four.experience.plain_s_of(4) / one.experience.plain_s_of(1)
    assert four.account.saved_s == pytest.approx(0.8 * share)
    assert four.sharing(1, n_prompt_rows=0).account.saved_s == four.account.saved_s


def test_rows_of_prompts_are_not_charged_to_guesses() -> None:
    known = curve((1, 0.04), (8, 0.32), (40, 1.6))
    shared = planner(known=known).sharing(1, n_prompt_rows=32)
    pass_s = known.second(35)
    outcome = replace(OUTCOME, n_prompt_rows=32, n_tokens=3, verified=2, pass_s=pass_s)
    alone_s = pass_s - known.second(33) + known.second(1)
    saved_s = shared.observe(replace(outcome, wall_s=pass_s)).account.saved_s
    assert saved_s == pytest.approx(3 * shared.experience.plain_s - alone_s, rel=0.05)


def test_rounds_of_few_texts_say_nothing_about_rounds_of_many() -> None:
    few = planner()
    few = replace(
        few, experience=replace(few.experience, rounds=4.0, claimed=9.0, plain_tokens=9.0)
    )
    assert few.sharing(2, n_prompt_rows=0).experience.proven_rate == 0
    assert few.sharing(1, n_prompt_rows=5).experience.proven_rate > 0


def test_guesses_whose_experts_are_in_memory_save_no_reads() -> None:
    known = replace(curve(*RESIDENT), used_share=1 / 16, all_experts_s=1.6, n_first_rows=99)
    value = planner(known=known)

    def saved_s(first_row_stall_s: float) -> float:
        outcome = replace(
            OUTCOME, first_row_stall_s=first_row_stall_s, choice_stall_s=0.2, pass_s=0.4, wall_s=0.4
        )
        return value.observe(outcome).account.saved_s

    assert saved_s(0.1) - saved_s(0.02) == pytest.approx(OUTCOME.n_tokens * 0.08)
