"""Bounds of what guesses may cost a round, a text and a pair, and their pauses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edgespec.engine.planning.credit import LATER_SHARE, START_SHARE, Credit
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.values import PassReport
from planner_cases import (
    FAILED,
    OUTCOME,
    PLAIN,
    RESIDENT,
    RIGHT,
    WRONG,
    begun,
    curve,
    line,
    planner,
    restored,
    rounds,
    with_costs,
    with_credit,
)


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
