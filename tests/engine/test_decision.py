"""Choices of the round planner where costs and chances are known, and its risk where not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.engine.outcome import RoundOutcome, RoundSoFar
from edgespec.engine.planning.credit import LATER_SHARE, START_SHARE, Credit
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.engine.planning.round_costs import RoundCosts
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
        known.see_pass(n_rows, report)
    return known


def planner(known: PassCurve | None = None) -> RoundPlanner:
    """A planner that knows what draft steps cost."""
    return begun(known, seen_step_s=STEP_S, seen_overhead_s=STEP_S)


def begun(passes: PassCurve | None = None, room: int = 99, **known: float) -> RoundPlanner:
    """Passes have been seen, guesses have not."""
    value = RoundPlanner(RoundCosts(passes or curve(*RESIDENT), **known))
    value.credit.begin_text(0, room)
    return value


def line(*confidences: float) -> RoundSoFar:
    tree, end = TokenTree(0), ROOT
    for token, confidence in enumerate(confidences):
        end = tree.add(end, token, confidence)
    return RoundSoFar(tree, [end])


def with_credit(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, credit=replace(value.credit, **changed))


def with_costs(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, costs=replace(value.costs, **changed))


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


def test_nothing_is_tried_before_a_pass_was_seen() -> None:
    assert not RoundPlanner(credit=Credit(room=99, granted=3.2)).choose()


def test_a_round_may_cost_half_of_what_guesses_may_cost_a_text() -> None:
    value = begun(curve(*RESIDENT, read_s=0.5), draft_share=0.05)
    assert value.credit.left == pytest.approx(0.05 * 64)
    assert value.choose() == pytest.approx(0.05 * 64 * 0.5 * 0.5)


def test_a_trial_risks_the_shortest_line_that_would_pay() -> None:
    """Half of what the text could afford covered no line that pays: guesses paused for 2, 4, 8, ...
    rounds without having been tried."""
    repacked = curve(*[(1, 0.012)] * 3, (2, 0.024), (8, 0.036))
    value = begun(repacked, seen_step_s=0.001, seen_overhead_s=0.001)
    line_s = (0.026 - 0.012) + 2 * 0.001 + 0.001  # one guess takes another pass's time
    assert value.choose() == pytest.approx(max(line_s, 0.5 * 0.05 * 64 * 0.012))
    value = with_credit(value, lost=1.5)
    assert value.choose() == pytest.approx(line_s)
    assert not with_credit(value, lost=2.0).choose()


def test_no_round_is_tried_whose_risk_does_not_cover_a_line_that_would_pay() -> None:
    value = begun(draft_share=0.05)
    assert value.choose()
    assert not with_credit(value, lost=2.5).choose()
    assert with_credit(value, lost=2.5 - LATER_SHARE * 500).choose()


@pytest.mark.parametrize(("n_tokens", "most"), [(64, 0.08), (256, 0.03)])
def test_guesses_may_not_cost_a_text_more_than_is_promised(n_tokens: int, most: float) -> None:
    value = rounds(begun(room=n_tokens), *[PLAIN] * n_tokens)
    assert value.credit.left <= 0.76 * most * n_tokens


def test_a_short_text_may_lose_the_same_share() -> None:
    assert begun(room=16).credit.left == pytest.approx(0.05 * 16)


def test_what_guesses_saved_may_be_risked() -> None:
    saved = with_credit(begun(), lost=-5.0)
    assert saved.credit.left == pytest.approx(begun().credit.left + 5)


def test_untried_guesses_are_verified_as_far_as_the_risk_covers_them() -> None:
    value = begun(draft_share=0.05)
    assert value.best(0.03, line(*[0.98] * 7)).n_rows == 1
    assert value.best(1.0, line(*[0.98] * 7)).n_rows == 8


def test_a_draft_reads_a_long_text_only_where_that_pays() -> None:
    proven = with_costs(planner(), seen_token_read_s=0.001)
    proven = with_credit(proven, tokens=40.0, plain_tokens=20.0, lost=-999.0)
    assert with_credit(proven, unread=500).choose()
    assert not with_credit(proven, unread=5000).choose()
    longer = with_credit(proven, unread=5000, room=900, n_tokens=600)
    assert longer.choose()


def test_a_long_prompt_gives_credit_for_the_draft_to_read_it() -> None:
    value = begun()
    before = value.credit.left
    value.see_prompt(PassReport(wall_s=400 * value.costs.plain_s(), n_tokens=4000))
    gained = value.credit.left - before
    assert gained == pytest.approx((START_SHARE + LATER_SHARE) * 400, rel=0.05)


# What guesses cost a pair


def lose(value: RoundPlanner, n_tokens: float) -> None:
    """The end of a text in which guesses cost so many tokens, and another text."""
    value.credit.lost = n_tokens
    value.credit.begin_text(0, 64)


def test_what_guesses_cost_earlier_texts_they_may_not_cost_again() -> None:
    value, full = begun(room=64), START_SHARE * 64
    assert value.credit.left == pytest.approx(full)
    lose(value, full / 4)
    assert value.credit.left == pytest.approx(0.75 * full)
    lose(value, value.credit.left)
    assert value.credit.left == pytest.approx(0)
    assert not value.choose()


def test_what_guesses_saved_an_earlier_text_gives_credit_again() -> None:
    value, full = begun(room=64), START_SHARE * 64
    lose(value, full)
    lose(value, -2 * full)
    assert value.credit.left == pytest.approx(full)


def test_a_pair_whose_guesses_never_paid_is_tried_again_after_many_tokens() -> None:
    value = begun(room=64, draft_share=0.05)
    lose(value, 99.0)
    tried = []
    for _ in range(20):
        tried.append(value.choose())
        value.credit.lost -= LATER_SHARE * 64
        value.credit.begin_text(0, 64)
    assert not any(tried[:3]) and any(tried)


def test_a_short_text_spends_little_of_the_credit_of_its_pair() -> None:
    value = begun(room=16)
    lose(value, value.credit.left)
    assert value.credit.spent == pytest.approx(0.25)


def test_texts_that_join_others_get_no_credit_that_those_have_lost() -> None:
    """A server that is never idle gave each text its credit anew."""
    value = begun(room=64)
    for _ in range(9):
        value.credit.lost = value.credit.granted
        value.credit.begin_text(0, 64, beside=True)
    assert value.credit.granted == pytest.approx(START_SHARE * 64)


def test_another_run_knows_what_guesses_have_cost() -> None:
    value = begun(room=64)
    lose(value, 0.8 * START_SHARE * 64)
    assert restored(value.state()).credit.spent == pytest.approx(0.8)


# Guesses that do not pay pause


def rounds(value: RoundPlanner, *outcomes: RoundOutcome) -> RoundPlanner:
    """State of a copy of `value` after the rounds."""
    value = deepcopy(value)
    for outcome in outcomes:
        value.see_round(outcome)
    return value


def restored(numbers: Mapping[str, float]) -> RoundPlanner:
    """A planner of another run, which begins a text."""
    value = RoundPlanner()
    value.restore(numbers)
    value.credit.begin_text(0, 99)
    return value


def test_guesses_that_fail_pause_for_2_4_8_rounds() -> None:
    value, pauses = with_credit(begun(draft_share=0.05), lost=-99.0), []
    for _ in range(4):
        assert value.choose()
        value, n = rounds(value, FAILED), 0
        while not value.choose():
            value, n = rounds(value, PLAIN), n + 1
        pauses.append(n)
    assert pauses == [2, 4, 8, 16]


def test_a_trial_that_pays_ends_the_pauses() -> None:
    value = rounds(with_credit(begun(draft_share=0.05), lost=-99.0), *[FAILED, PLAIN, PLAIN] * 2)
    assert value.credit.pause == 4
    value = rounds(value, *[PLAIN] * 2, *[replace(OUTCOME, n_tokens=8, expected=7.0)] * 4)
    assert value.credit.pause == 0
    assert value.choose() and value.credit.pays


def test_another_text_begins_without_a_pause() -> None:
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3)
    assert value.credit.pause_left > 0
    value.credit.begin_text(0, 99)
    assert value.credit.pause_left == 0


def test_what_guesses_would_have_saved_may_be_risked_though_they_pause() -> None:
    """A text that began to repeat itself went on without guesses."""
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3)
    assert not value.choose() and not value.choose_free()
    value = rounds(value, *[RIGHT] * 4)
    row_s = (0.160 - 0.040) / 7  # of a line of seven
    assert value.choose_free() == pytest.approx(4 * (0.040 - row_s), rel=0.01)


def test_a_wrong_guess_at_nothing_costs_the_rest_of_its_line() -> None:
    value = begun(draft_share=0.05)
    proven = rounds(value, *[RIGHT] * 5).credit.proven
    row = (0.160 - 0.040) / 7 / 0.040
    assert rounds(value, *[RIGHT] * 5, WRONG).credit.proven == pytest.approx(proven - 2 * row)
    assert not rounds(value, *[RIGHT, RIGHT, WRONG]).choose_free()


def test_prose_proves_nothing_and_nothing_proves_more_than_guesses_may_cost() -> None:
    value = begun(draft_share=0.05)
    assert not rounds(value, *[RIGHT, WRONG] * 16).choose_free()
    value = rounds(value, *[RIGHT] * 64)
    assert value.credit.proven == pytest.approx(value.credit.granted)


def test_guesses_that_were_right_though_not_verified_raise_what_a_round_may_risk() -> None:
    """One guess of a sure line was verified a pass, which brings nothing where two rows take nearly
    twice as long: the text stayed too poor for the others."""
    value = with_credit(begun(draft_share=0.05), lost=1.0)
    before_s = value.choose()
    assert 0 < before_s < rounds(value, *[RIGHT] * 5).choose()


def test_the_draft_does_not_read_while_guesses_from_the_text_are_right() -> None:
    """It read the whole passage that had been found without it, a token's time on two cores."""
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3, *[RIGHT] * 4)
    assert not value.choose() and value.choose_free()
    found = rounds(value, replace(OUTCOME, n_tokens=7, accepted=6))
    missed = rounds(value, FAILED)
    for known in (found, missed):
        known.credit.unread, known.credit.pause_left, known.credit.lost = 20, 0, 0.0
    assert not found.choose() and found.choose_free()
    assert missed.choose()


def test_a_free_round_that_cost_more_than_it_brought_proves_as_much_less() -> None:
    """Savings of unverified guesses were risked again and again: five tokens of 64 were lost."""
    value = rounds(begun(draft_share=0.05), *[FAILED, PLAIN, PLAIN] * 3, *[RIGHT] * 4)
    assert value.choose_free()
    before = value.credit.proven
    after = rounds(value, replace(OUTCOME, n_tokens=3, draft_steps=0, growing_s=0.0)).credit.proven
    assert before - after == pytest.approx(0.167 / 0.040 - 3, abs=0.02)


def test_no_more_guesses_are_looked_up_than_a_pass_may_verify() -> None:
    value = planner()
    row_s = (0.160 - 0.074) / 6
    assert value.most_nodes(0.0) == 1
    assert value.most_nodes(0.034 + 2.5 * row_s) == 4
    assert value.most_nodes(math.inf) == value.max_rows


def test_rounds_that_find_no_guess_use_up_what_guesses_have_proven() -> None:
    """Once a text had repeated itself, each later token took a round's overhead: 1.1 of 13 ms."""
    value, n_rounds = rounds(begun(draft_share=0.05), *[RIGHT] * 4), 0
    missed = replace(FAILED, verified=0, n_rows=1, report=PLAIN.report, growing_s=0.0)
    missed = replace(missed, draft_steps=0, wall_s=0.044, expected=0.0)
    while value.choose_free():
        value, n_rounds = rounds(value, missed), n_rounds + 1
        value.costs.seen_overhead_s = 0.004
    assert 5 < n_rounds < 30


def test_drafting_that_paid_goes_on_beside_a_pass_that_waits_for_reads() -> None:
    value = planner(curve(*RESIDENT, read_s=0.5))
    assert not value.drafts_beside(8)
    value = with_credit(value, tokens=40.0, plain_tokens=20.0)
    assert value.drafts_beside(8)
    assert not value.drafts_beside(40)
    assert not replace(value, may_overlap=False).drafts_beside(8)


def test_drafting_beside_a_pass_that_computes_all_the_time_is_not_tried() -> None:
    assert not with_credit(planner(), tokens=40.0, plain_tokens=20.0).drafts_beside(1)


OUTCOME = RoundOutcome(
    n_tokens=3,
    accepted=2,
    drafted=4,
    verified=7,
    n_rows=8,
    provisional_drafted=0,
    provisional_kept=0,
    draft_steps=4,
    draft_s=0.012,
    report=PassReport(wall_s=0.16),
    wall_s=0.175,
    guessed=True,
    growing_s=0.008,
    expected=2.5,
)
FAILED = replace(OUTCOME, n_tokens=1, accepted=0, expected=1.5)
PLAIN = replace(
    OUTCOME,
    n_tokens=1,
    accepted=0,
    verified=0,
    n_rows=1,
    report=PassReport(wall_s=0.04),
    wall_s=0.04,
    guessed=False,
    growing_s=0.0,
    draft_steps=0,
    expected=0.0,
)
RIGHT, WRONG = replace(PLAIN, surest=[True]), replace(PLAIN, surest=[False])


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
