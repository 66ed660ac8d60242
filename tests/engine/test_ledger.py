"""Choices where prices and chances are known, and bounds of what guesses may cost."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.ledger import LATER_SHARE, START_SHARE, Ledger
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.prices import Prices
from edgespec.values import PassReport

STEP_S = 0.002


def resident(read_s: float = 0.0) -> Prices:
    """One row costs 40 ms, a second one 34 more, eight together 160."""
    prices = Prices(read_s=read_s, mean_step_s=STEP_S, mean_rest_s=STEP_S, n_passes=3)
    for n_rows, seconds in ((1, 0.040), (2, 0.074), (8, 0.160), (13, 0.233)):
        prices.put(n_rows, seconds)
    return prices


def begun(prices: Prices | None = None, room: int = 99) -> Ledger:
    """Passes have been seen, guesses have not."""
    ledger = Ledger(prices or resident())
    ledger.begin_text(room)
    return ledger


def deal(ledger: Ledger, n_texts: int = 1, n_unread: int = 0) -> Ledger:
    """A copy of the ledger at the beginning of a pass."""
    ledger = deepcopy(ledger)
    ledger.begin_pass(n_texts, n_unread, max_nodes=64)
    return ledger


def taught(ledger: Ledger, *outcomes: RoundOutcome) -> Ledger:
    """A copy of the ledger after the rounds."""
    ledger = deepcopy(ledger)
    for outcome in outcomes:
        ledger = deal(ledger)
        ledger.see(outcome)
    return ledger


def line(*confidences: float) -> np.ndarray:
    return np.cumprod([1.0, *confidences])


def worth(a_deal: Ledger, *confidences: float, step_depth: int = 1) -> bool:
    """A step at the end of a line."""
    nodes, depth = line(*confidences), len(confidences)
    return a_deal.worth_a_step(nodes, nodes[-1:], np.array([depth]), step_depth=step_depth)


OUTCOME = RoundOutcome(
    n_tokens=3,
    verified=7,
    n_rows=8,
    draft_steps=4,
    growing_s=4 * STEP_S,
    report=PassReport(wall_s=0.16),
    wall_s=0.16 + 5 * STEP_S,
    guessed=True,
    expected=2.0,
)
FAILED = replace(OUTCOME, n_tokens=1, expected=0.5)
PLAIN = RoundOutcome(n_tokens=1, report=PassReport(wall_s=0.04), wall_s=0.04)
RIGHT = replace(PLAIN, claimed=0.9, right=1)


# What is best


def test_a_line_of_seven_is_seen_from_a_bare_root_though_one_guess_does_not_pay() -> None:
    assert 1.97 / 0.076 < 1 / 0.040 + 1  # one guess hardly pays
    assert worth(Ledger(resident(), max_nodes=64))


def test_a_step_that_adds_several_nodes_costs_once() -> None:
    dear = Ledger(replace(resident(), mean_step_s=0.04), max_nodes=64)
    assert not worth(dear)
    assert worth(dear, step_depth=7)


def test_seven_likely_guesses_are_verified_and_seven_poor_ones_are_not() -> None:
    free = Ledger(resident(), max_nodes=64)
    assert free.best(line(*[0.98] * 7))[0] == 8
    assert free.best(line(*[0.4] * 7))[0] == 1


def test_rows_that_reads_hide_are_verified_however_unlikely() -> None:
    assert Ledger(resident(read_s=0.5), max_nodes=64).best(line(0.9, 0.1, 0.1, 0.1))[0] == 5


def test_drafting_goes_on_while_reads_hide_rows_and_ends_when_they_do_not() -> None:
    hidden = Ledger(resident(read_s=0.5), max_nodes=64)
    assert worth(hidden, 0.9, 0.9, 0.9)
    assert not worth(hidden, *[0.5] * 20)


def test_drafting_goes_on_beside_a_pass_that_waits_for_reads_once_it_has_paid() -> None:
    ledger = begun(resident(read_s=0.5))
    assert not deal(ledger).hides(8)
    paid = replace(ledger, tokens=40.0, plain_tokens=20.0)
    assert deal(paid).hides(8)
    assert not deal(paid).hides(40)
    assert not deal(replace(paid, may_overlap=False)).hides(8)


def test_untried_guesses_are_verified_as_far_as_the_risk_covers_them() -> None:
    sure = line(*[0.98] * 7)
    assert Ledger(resident(), max_nodes=64, risk_s=0.03).best(sure)[0] == 1
    assert Ledger(resident(), max_nodes=64, risk_s=1.0).best(sure)[0] == 8


def test_guesses_that_were_right_unverified_may_be_risked() -> None:
    """A text that repeats itself had lost all that guesses may cost before."""
    sure = line(*[0.98] * 7)
    poor = replace(begun(), lost=99.0)
    assert deal(taught(poor, *[RIGHT] * 2)).best(sure)[0] == 1
    assert deal(taught(poor, *[RIGHT] * 12)).best(sure)[0] > 1


def test_a_step_is_judged_after_texts_of_the_pass_have_ended() -> None:
    """Three texts were counted, and two nodes were left when one was cancelled: an IndexError."""
    assert deal(begun(), 3).worth_a_step(np.ones(2), np.ones(2), np.zeros(2, int))


def test_rows_of_lines_are_priced_as_the_target_computes_them() -> None:
    pool = np.array([1.0, 0.9, 0.81, 0.73, 0.4, 0.4])
    hidden = Ledger(resident(read_s=0.15), max_nodes=64)
    assert hidden.best(pool, rows=np.array([1, 2, 3, 4, 16, 24]))[0] == 4
    assert hidden.best(pool, rows=np.arange(1, 7))[0] == 6


# What may be risked


def test_nothing_is_tried_before_a_pass_was_seen() -> None:
    untried = deal(begun(Prices()))
    assert not untried.drafts and not untried.risk_s


def test_a_round_may_cost_half_of_what_guesses_may_cost_a_text() -> None:
    ledger = begun(resident(read_s=0.5))
    assert ledger.left == pytest.approx(0.05 * 64)
    assert deal(ledger).risk_s == pytest.approx(0.05 * 64 * 0.5 * 0.5)
    assert begun(room=16).left == pytest.approx(0.05 * 16)


def test_a_trial_risks_the_shortest_line_that_would_pay() -> None:
    """Half of what the text could afford covered no line that pays, so that guesses were not
    tried."""
    repacked = Prices(mean_step_s=0.001, mean_rest_s=0.001, n_passes=3)
    for n_rows, seconds in ((1, 0.012), (2, 0.024), (8, 0.036)):
        repacked.put(n_rows, seconds)
    line_s = (0.026 - 0.012) + 2 * 0.001 + 0.001  # one guess takes another pass's time
    ledger = replace(begun(repacked), lost=1.5)
    assert deal(ledger).risk_s == pytest.approx(line_s)
    assert not deal(replace(ledger, lost=2.0)).drafts


@pytest.mark.parametrize(("n_tokens", "most"), [(64, 0.08), (256, 0.03)])
def test_guesses_may_not_cost_a_text_more_than_is_promised(n_tokens: int, most: float) -> None:
    ledger = taught(begun(room=n_tokens), *[PLAIN] * n_tokens)
    assert ledger.left <= 0.76 * most * n_tokens


def test_a_round_is_charged_with_what_it_took_beyond_its_tokens() -> None:
    ledger = taught(begun(), OUTCOME)
    assert ledger.lost == pytest.approx(0.17 / 0.040 - 3 * (1 + LATER_SHARE))
    assert ledger.plain_tokens == pytest.approx(0.17 / 0.040)


def test_the_gain_of_a_text_is_of_all_its_rounds() -> None:
    ledger = begun()
    assert ledger.gain == 0
    ledger = taught(ledger, PLAIN, PLAIN, OUTCOME)
    assert ledger.gain == pytest.approx(5 / (2 + ledger.plain_tokens))
    ledger.begin_text(99)
    assert ledger.gain == 0


def test_rows_of_prompts_are_not_charged_to_guesses() -> None:
    ledger = begun()
    pass_s = float(ledger.prices.pass_s(40))
    ledger.begin_pass(1, 0, 64, n_prompt_rows=32)
    report = PassReport(wall_s=pass_s)
    ledger.see(replace(OUTCOME, n_rows=40, report=report, wall_s=pass_s + 5 * STEP_S))
    assert ledger.lost < taught(begun(), OUTCOME).lost


def test_guesses_whose_experts_are_in_memory_save_no_reads() -> None:
    mixed = replace(resident(), used_share=1 / 16, all_experts_s=1.6, n_choices=99)

    def lost_s(first_row_stall_s: float) -> float:
        report = PassReport(0.4, choice_stall_s=0.2, first_row_stall_s=first_row_stall_s)
        after = taught(begun(mixed), replace(OUTCOME, report=report, wall_s=0.41))
        prices = after.prices
        token_s = prices.plain_s() + first_row_stall_s - float(prices.choice_s(1))
        return (after.lost + OUTCOME.n_tokens) * token_s

    assert lost_s(0.02) == pytest.approx(lost_s(0.1), rel=0.1)


def test_a_draft_reads_a_long_text_only_where_the_text_can_afford_it() -> None:
    ledger = begun(replace(resident(), mean_read_s=0.001))
    assert deal(ledger, n_unread=50).drafts
    assert not deal(ledger, n_unread=500).drafts
    assert deal(replace(ledger, lost=-99.0), n_unread=500).drafts


def test_a_reading_that_other_work_held_up_is_charged_in_part() -> None:
    """It is not known yet how long the draft takes to read, but for its size."""
    ledger = begun(replace(resident(), draft_share=0.05, prompt_token_s=0.02))
    assert ledger.prices.reading_s(100) == pytest.approx(0.1)
    ledger.see_reading(100, 0.9)
    assert ledger.lost == pytest.approx(0.3 / 0.04)


def test_a_long_prompt_gives_credit_for_the_draft_to_read_it() -> None:
    ledger = begun()
    before = ledger.left
    ledger.see_prompt(PassReport(wall_s=400 * ledger.prices.plain_s(), n_tokens=4000))
    assert ledger.left - before == pytest.approx((START_SHARE + LATER_SHARE) * 400, rel=0.05)


# Other rounds, texts and runs


def lose(ledger: Ledger, n_tokens: float) -> None:
    """The end of a text in which guesses cost so many tokens, and another text."""
    ledger.lost = n_tokens
    ledger.begin_text(64)


def test_what_guesses_cost_earlier_texts_they_may_not_cost_again_until_it_is_saved() -> None:
    ledger, full = begun(room=64), START_SHARE * 64
    lose(ledger, full / 4)
    assert ledger.left == pytest.approx(0.75 * full)
    lose(ledger, ledger.left)
    assert ledger.left == pytest.approx(0) and not deal(ledger).drafts
    lose(ledger, -2 * full)
    assert ledger.left == pytest.approx(full)


def test_a_text_that_joins_others_has_less_credit_where_guesses_cost_them() -> None:
    ledger = replace(begun(room=64), lost=START_SHARE * 32)
    ledger.begin_text(64, beside=True)
    assert ledger.granted == pytest.approx(1.5 * START_SHARE * 64)


def test_more_texts_than_rows_are_not_drafted_for() -> None:
    ledger = begun(resident(read_s=0.5))
    ledger.begin_pass(4, 0, max_nodes=3)
    assert not ledger.drafts


def test_another_run_begins_where_one_left_off() -> None:
    first = taught(begun(), *[OUTCOME] * 30)
    second = Ledger()
    second.load_state_dict(first.state_dict())
    assert second.speedup == pytest.approx(first.speedup)


@given(
    st.dictionaries(
        st.sampled_from(tuple(taught(begun(), OUTCOME).state_dict())),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=9,
    )
)
def test_no_numbers_make_a_ledger_that_cannot_decide(numbers: dict[str, float]) -> None:
    ledger = Ledger()
    ledger.load_state_dict(numbers)
    ledger = taught(ledger, OUTCOME)
    assert math.isfinite(ledger.left) and math.isfinite(ledger.speedup)
    assert 1 <= deal(ledger).best(line(0.9, 0.3))[0] <= 3
