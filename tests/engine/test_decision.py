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

from edgespec.engine.account import TextAccount
from edgespec.engine.decision import RoundPlan, RoundPlanner
from edgespec.engine.experience import Experience, Payoff
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
    experience = Experience(known or curve(*RESIDENT), seen_step_s=STEP_S, seen_overhead_s=STEP_S)
    hits = [int((n + 1) * right) > int(n * right) for n in range(30)]
    nodes = [PathNode(right, was_right, was_right) for was_right in hits]
    return RoundPlanner(experience.observe_nodes(nodes), TextAccount.of(0, 99))


def begun(passes: PassCurve | None = None, room: int = 99, **known: float) -> RoundPlanner:
    """Passes have been seen, guesses have not."""
    return RoundPlanner(Experience(passes or curve(*RESIDENT), **known), TextAccount.of(0, room))


def line(*confidences: float) -> RoundSoFar:
    tree, end = TokenTree(0), ROOT
    for token, confidence in enumerate(confidences):
        end = tree.add(end, token, confidence)
    return RoundSoFar(tree, [end])


def with_account(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, account=replace(value.account, **changed))


def with_experience(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, experience=replace(value.experience, **changed))


def unlimited(value: RoundPlanner) -> RoundPlan:
    return replace(value.plan(), guesses=True, risk_s=math.inf)


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
    """Values of all points are computed once: a round chooses several times among nine and more."""
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
        value.grows_on(plan, line(0.9))
        counts.append(n_asked)
    assert counts == [2, 2]


def test_nothing_is_tried_before_a_pass_was_seen() -> None:
    assert not RoundPlanner(account=TextAccount.of(0, 99)).plan().guesses


def test_the_first_trial_may_cost_half_of_what_guesses_may_cost_a_text() -> None:
    value = begun(curve(*RESIDENT, read_s=0.5), draft_share=0.05)
    plan = value.plan()
    assert plan.guesses and plan.is_trial
    assert value.risk_s == pytest.approx(0.05 * 64 * 0.5)
    assert plan.risk_s == pytest.approx(value.risk_s / 2)


def test_no_round_is_tried_whose_risk_does_not_cover_one_guess() -> None:
    value = begun(draft_share=0.05)
    assert value.plan().guesses
    assert not with_account(value, lost=2.5).plan().guesses
    assert with_account(value, lost=2.5, n_tokens=100).plan().guesses


@pytest.mark.parametrize(("n_tokens", "most"), [(64, 0.08), (256, 0.03)])
def test_guesses_may_not_cost_a_text_more_than_is_promised(n_tokens: int, most: float) -> None:
    account = replace(TextAccount.of(0, n_tokens), n_tokens=n_tokens)
    assert account.left <= 0.76 * most * n_tokens


def test_a_short_text_may_lose_the_same_share() -> None:
    assert TextAccount.of(0, 16).left == pytest.approx(0.05 * 16)


def test_what_guesses_saved_may_be_risked() -> None:
    saved = with_account(begun(), lost=-5.0)
    assert saved.risk_s == pytest.approx(begun().risk_s + 5 * 0.040)


def test_untried_guesses_are_verified_as_far_as_the_risk_covers_them() -> None:
    value = begun(draft_share=0.05)
    assert value.best(RoundPlan(True, 0.03), line(*[0.98] * 7)).n_rows == 1
    assert value.best(RoundPlan(True, 1.0), line(*[0.98] * 7)).n_rows == 8


def test_a_draft_reads_a_long_text_only_where_that_pays() -> None:
    proven = with_experience(
        planner(0.97), payoff=Payoff(tokens=40.0, plain_tokens=20.0), seen_token_read_s=0.001
    )
    proven = with_account(proven, lost=-999.0)
    assert with_account(proven, unread=500).plan().guesses
    assert not with_account(proven, unread=5000).plan().guesses
    longer = with_account(proven, unread=5000, room=900, n_tokens=600)
    assert longer.plan().guesses


def test_what_a_draft_reads_beside_the_target_s_prompt_is_not_charged() -> None:
    account = TextAccount(prompt_s=10.0)
    assert account.unpaid_s(0.4) == 0
    assert account.unpaid_s(0.7) == pytest.approx(0.2)


# Guesses that do not pay pause


def rounds(value: RoundPlanner, *outcomes: RoundOutcome) -> RoundPlanner:
    for outcome in outcomes:
        value = value.observe(outcome)
    return value


def test_guesses_that_fail_pause_for_2_4_8_rounds() -> None:
    value, pauses = with_account(begun(draft_share=0.05), lost=-99.0), []
    for _ in range(4):
        assert value.plan().guesses
        value, n = value.observe(FAILED), 0
        while not value.plan().guesses:
            value, n = value.observe(PLAIN), n + 1
        pauses.append(n)
    assert pauses == [2, 4, 8, 16]


def test_a_trial_that_pays_ends_the_pauses() -> None:
    value = rounds(with_account(begun(draft_share=0.05), lost=-99.0), *[FAILED, PLAIN, PLAIN] * 2)
    assert value.experience.payoff.pause == 4
    value = rounds(value, *[PLAIN] * 2, *[replace(OUTCOME, n_tokens=8, expected=7.0)] * 4)
    assert value.experience.payoff.pause == 0
    assert value.plan().guesses and not value.plan().is_trial


def test_another_run_goes_on_with_the_pause() -> None:
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3)
    again = RoundPlanner().load_state_dict(value.state_dict())
    assert again.experience.payoff.left == value.experience.payoff.left > 0


def test_right_guesses_at_nothing_shorten_a_pause() -> None:
    """A text that began to repeat itself went on without guesses."""
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3)
    left = value.experience.payoff.left
    hit, miss = (Rehearsed(0.97, is_right, 0.99, is_right) for is_right in (True, False))
    assert value.observe(replace(PLAIN, found=[miss])).experience.payoff.left == left - 1
    assert value.observe(replace(PLAIN, found=[hit])).experience.payoff.left == max(0, left - 8)


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
    path_nodes=(
        PathNode(0.9, True, True),
        PathNode(0.95, True, True),
        PathNode(0.9, False, False),
    ),
)
FAILED = replace(
    OUTCOME, n_tokens=1, accepted=0, expected=1.5, path_nodes=(PathNode(0.9, False, False),)
)
PLAIN = replace(
    OUTCOME,
    n_tokens=1,
    accepted=0,
    verified=0,
    pass_s=0.04,
    wall_s=0.04,
    guessed=False,
    growing_s=0.0,
    draft_steps=0,
    expected=0.0,
    path_nodes=(),
)


def test_a_round_teaches_costs_and_chances() -> None:
    value = begun().observe(OUTCOME)
    known = value.experience
    assert known.step_s == pytest.approx(0.002)
    assert known.overhead_s == pytest.approx(0.007)
    assert known.hits == pytest.approx(0.95**2 + 0.95)
    assert known.tries == pytest.approx(0.95**2 + 0.95 + 1)
    assert value.account.lost == pytest.approx(0.175 / 0.040 - 3)
    assert known.payoff.plain_tokens == pytest.approx(0.175 / 0.040)


def test_a_round_in_which_the_draft_read_the_text_teaches_nothing_of_later_ones() -> None:
    known = (
        begun(draft_share=0.05).observe(replace(OUTCOME, reading_s=0.05, wall_s=0.25)).experience
    )
    assert known.step_s == known.overhead_s == pytest.approx(0.05 * 0.040)


def test_another_run_begins_where_one_left_off_and_doubts_it_soon() -> None:
    taught = begun()
    for _ in range(30):
        taught = taught.observe(OUTCOME)
    value = RoundPlanner(account=TextAccount.of(0, 99)).load_state_dict(taught.state_dict())
    assert value.experience.payoff.speedup == pytest.approx(
        taught.experience.payoff.speedup, rel=0.1
    )
    assert value.experience.tries <= 6.001
    assert value.experience.payoff.plain_tokens <= 6.001


@given(
    st.dictionaries(
        st.sampled_from(tuple(RoundPlanner().observe(OUTCOME).state_dict())),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=9,
    )
)
def test_no_numbers_make_a_value_that_cannot_decide(numbers: dict[str, float]) -> None:
    value = RoundPlanner(account=TextAccount.of(0, 99)).load_state_dict(numbers).observe(OUTCOME)
    assert math.isfinite(value.experience.rate)
    assert 1 <= value.best(unlimited(value), line(0.9, 0.3)).n_rows <= 3


def test_a_reading_that_other_work_held_up_is_charged_in_part() -> None:
    """It is not known yet how long the draft takes to read, but for its size."""
    value = begun(draft_share=0.05, prompt_token_s=0.02)
    value = with_account(value, unread=100)
    assert value.experience.reading_s(100) == pytest.approx(0.1)
    read = value.observe_reading(0.9)
    assert read.experience.reading_s(100) == pytest.approx(0.3)
    assert read.account.lost == pytest.approx(0.3 / 0.04)
    assert value.observe_reading(0.05).account.lost == pytest.approx(0.05 / 0.04)


def test_a_draft_that_is_right_more_often_than_it_says_is_believed_more() -> None:
    modest = with_experience(planner(), hits=27.0, right=27.0, tries=30.0, claimed=15.0)
    likely, plan = line(*[0.55] * 7), unlimited(modest)
    assert modest.best(plan, likely).n_rows == 8
    assert planner(0.55).best(plan, likely).n_rows < 8


def test_what_grows_beside_a_pass_saves_half_of_it_at_most() -> None:
    """A step that other work made slow made rounds shorter than nothing."""
    value = with_experience(planner(0.8, curve(*RESIDENT, read_s=0.5)), kept_s=9.0)
    pass_s = value.experience.curve.second(2)
    assert value.best(unlimited(value), line(0.9)).seconds >= 0.5 * pass_s


def test_rows_of_prompts_are_not_charged_to_guesses() -> None:
    known = curve((1, 0.04), (8, 0.32), (40, 1.6))
    shared = planner(known=known).sharing(1, n_prompt_rows=32)
    pass_s = known.second(35)
    outcome = replace(OUTCOME, n_prompt_rows=32, verified=2, pass_s=pass_s, growing_s=0.0)
    alone_s = pass_s - known.second(33) + known.second(1)
    lost = shared.observe(replace(outcome, wall_s=pass_s)).account.lost
    assert lost == pytest.approx(alone_s / shared.experience.plain_s - 3, abs=0.06)


def test_rounds_of_few_texts_say_nothing_about_rounds_of_many() -> None:
    few = with_experience(planner(), payoff=Payoff(tokens=20.0, plain_tokens=9.0))
    assert few.sharing(2, n_prompt_rows=0).experience.payoff.plain_tokens == 0
    assert few.sharing(1, n_prompt_rows=5).experience.payoff.plain_tokens > 0


def test_guesses_whose_experts_are_in_memory_save_no_reads() -> None:
    known = replace(curve(*RESIDENT), used_share=1 / 16, all_experts_s=1.6, n_first_rows=99)
    value = planner(known=known)

    def lost_s(first_row_stall_s: float) -> float:
        outcome = replace(
            OUTCOME, first_row_stall_s=first_row_stall_s, choice_stall_s=0.2, pass_s=0.4, wall_s=0.4
        )
        after = value.observe(outcome)
        token_s = after.experience.plain_s + first_row_stall_s - after.experience.curve.expert_s(1)
        return (after.account.lost + OUTCOME.n_tokens) * token_s

    assert lost_s(0.02) == pytest.approx(lost_s(0.1), rel=0.1)
