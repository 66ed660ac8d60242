"""Costs of passes, draft steps and reads, as measured passes teach them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.prices import Prices
from edgespec.values import PassReport


def passes(*measured: tuple[int, float], prices: Prices | None = None) -> Prices:
    """After passes of these rows and seconds, none of which waited."""
    prices = deepcopy(prices) if prices is not None else Prices()
    for n_rows, seconds in measured:
        see(prices, n_rows, PassReport(wall_s=seconds))
    return prices


def see(prices: Prices, n_rows: int, report: PassReport) -> None:
    prices.see_round(RoundOutcome(report=report, n_rows=n_rows, wall_s=report.wall_s))


def restored(numbers: dict[str, float]) -> Prices:
    """Prices of another run."""
    prices = Prices()
    prices.load_state_dict(numbers)
    return prices


def test_steps_and_kinks_are_kept() -> None:
    """One row, two rows, a tile of eight, and more."""
    prices = passes((1, 0.040), (2, 0.074), (8, 0.160), (13, 0.233))
    assert prices.pass_s(np.array([1, 2, 5, 8, 13, 18])) == pytest.approx(
        [0.040, 0.074, 0.117, 0.160, 0.233, 0.306]
    )


def test_a_prompt_tells_what_a_row_costs() -> None:
    prices = Prices()
    prices.see_prompt(PassReport(wall_s=2.0, n_tokens=140, passes=4))
    prices = passes((1, 0.04), prices=prices)
    assert prices.pass_s(8) == pytest.approx(0.04 + 7 * 0.46 / 34)


def test_a_short_prompt_tells_what_rows_cost_beside_reads() -> None:
    prices = Prices()
    prices.see_prompt(PassReport(wall_s=2.0, stall_s=1.9, read_s=2.0, n_tokens=4))
    assert prices.read_s == pytest.approx(2.0)
    assert prices.compute_s(4) == pytest.approx(0.1)
    assert prices.is_sure


ATTENTION_S = 2e-5
"""Seconds that a row takes for each token before it."""


def in_a_text(n_rows: int, n_context: float) -> float:
    return 0.05 + 0.01 * n_rows + ATTENTION_S * n_context * n_rows


def prompt(n_tokens: int, n_context: int) -> PassReport:
    """Reading the last `n_tokens` of a text."""
    seconds = in_a_text(100, n_context - n_tokens / 2)
    return PassReport(wall_s=n_tokens // 100 * seconds, passes=n_tokens // 100, n_tokens=n_tokens)


def test_a_long_prompt_tells_what_rows_cost_at_its_end() -> None:
    """Passes were expected to take what they took in short texts: up to a sixth."""
    prices = Prices()
    prices.see_prompt(prompt(100, 100), 100)
    prices = passes(*[(n, in_a_text(n, 100)) for n in (1, 2, 4, 8, 8, 4, 2, 1)], prices=prices)
    for n_tokens, n_context in ((15_900, 16_000), (4000, 20_000), (100, 100)):
        prices.see_prompt(prompt(n_tokens, n_context), n_context)
        for n_rows in (1, 2, 4, 8):
            expected_s = in_a_text(n_rows, n_context)
            assert prices.pass_s(n_rows) == pytest.approx(expected_s, rel=0.1)


def test_while_single_rows_are_all_that_was_seen_a_further_one_is_cheaper() -> None:
    """Taken to cost a whole pass, it would never be tried."""
    assert passes((1, 2.0), (1, 2.0)).pass_s(2) == pytest.approx(2.2)


def test_one_pass_that_was_held_up_does_not_make_more_rows_dear() -> None:
    """Six rows took eight times as long as five: eight rows were then priced at 34 times as much,
    and never tried again."""
    prices = passes((5, 0.18), (6, 1.5))
    assert prices.pass_s(8) <= 8 / 5 * 0.18 + 1e-9


@given(st.lists(st.tuples(st.integers(1, 97), st.floats(0.001, 10.0)), min_size=1, max_size=30))
def test_more_rows_never_cost_less(measured: list[tuple[int, float]]) -> None:
    seconds = passes(*measured).pass_s(np.arange(1, 129))
    assert np.isfinite(seconds).all()
    assert (np.diff(seconds) >= -1e-12).all()


def test_rows_are_free_until_their_computing_takes_as_long_as_the_reads() -> None:
    """Reads of 1 s, 0.1 s of computing and 0.02 s a row: 45 rows are hidden."""
    prices = Prices()
    for n in (1, 9, 17, 25):
        see(prices, n, PassReport(wall_s=1.0, stall_s=1.0 - 0.1 - 0.02 * n, read_s=1.0))
    assert prices.pass_s(40) == prices.pass_s(1) == pytest.approx(1.0)
    assert prices.pass_s(70) == pytest.approx(1.5, rel=0.01)
    assert prices.n_hidden(99) == 45


def test_reads_beside_computing_take_longer_and_hide_no_more_rows() -> None:
    """40 ms alone, and twice that beside a pass of many rows, which never waits."""
    prices = Prices()
    see(prices, 1, PassReport(0.04, 0.025, read_s=0.04))
    for n in (8, 16, 24, 32):
        see(prices, n, PassReport(0.01 + 0.005 * n, read_s=0.08))
    assert prices.read_s == pytest.approx(0.04)


def mixture(*measured: tuple[int, float, float]) -> Prices:
    """After passes that compute for a second: rows, stalls for experts of the first, and of all."""
    prices = Prices(used_share=1 / 16)
    for rows, first_s, all_s in measured:
        see(prices, rows, PassReport(1.0 + all_s, all_s, all_s, first_row_stall_s=first_s))
    return prices


def test_rows_of_a_mixture_that_share_nothing_cost_as_much_as_the_first() -> None:
    prices = mixture((1, 0.5, 0.5), *[(4, 0.5, 2.0 * 0.91)] * 16)  # of 16, 4 choose 3.64
    assert prices.choice_s(1) == pytest.approx(0.5)
    assert prices.choice_s(4) == pytest.approx(1.82, rel=0.05)
    again = Prices(used_share=1 / 16)
    again.load_state_dict(prices.state_dict())
    assert again.choice_s(4) == pytest.approx(prices.choice_s(4))


def test_the_first_row_tells_what_one_costs_though_all_passes_have_guesses() -> None:
    prices = mixture(*[(1, 0.5, 0.5)] * 3, *[(3, 0.1, 0.2)] * 60)
    assert prices.choice_s(1) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_what_another_run_learnt_is_rescaled_by_the_first_pass(times: float) -> None:
    taught = passes(*[(1, 0.04), (8, 0.16), (32, 0.5)] * 3)
    begun = passes((1, times * 0.04), prices=restored(taught.state_dict()))
    assert begun.pass_s(8) == pytest.approx(times * 0.16, rel=0.02)
    assert begun.pass_s(20) == pytest.approx(times * taught.pass_s(20), rel=0.02)


def test_passes_of_eight_rows_tell_that_one_row_is_faster_too() -> None:
    """One row was timed while others worked, and then all rounds guessed: 0.7 of no draft."""
    prices = passes(*[(1, 0.12), (8, 0.16)] * 2, *[(8, 0.08)] * 15)
    assert prices.pass_s(1) <= 0.085


def test_a_slow_pass_moves_a_price_less_than_a_fast_one() -> None:
    known = passes(*[(1, 0.04)] * 3)
    assert passes((1, 0.12), prices=known).pass_s(1) < 0.045
    assert passes((1, 0.02), prices=known).pass_s(1) < 0.032


def test_the_price_of_one_row_is_sure_after_three_passes() -> None:
    assert not passes((1, 0.12), (1, 0.04)).is_sure
    assert passes((1, 0.04), (1, 0.04), (1, 0.04)).is_sure


DRAFTED = RoundOutcome(
    n_tokens=3,
    n_rows=8,
    draft_steps=4,
    growing_s=0.008,
    report=PassReport(wall_s=0.16),
    wall_s=0.175,
    guessed=True,
)


def test_a_round_teaches_what_steps_and_the_rest_cost() -> None:
    prices = passes((1, 0.04), (8, 0.16))
    prices.see_round(DRAFTED)
    assert prices.step_s == pytest.approx(0.002)
    assert prices.rest_s == pytest.approx(0.007)


@pytest.mark.parametrize(("growing_s", "share"), [(0.011, 0.5), (0.016, 2 / 3), (0.05, 0.9)])
def test_steps_over_several_nodes_teach_what_a_further_one_costs(
    growing_s: float, share: float
) -> None:
    prices = passes((1, 0.04), (8, 0.16))
    several = replace(DRAFTED, growing_s=growing_s, lone_steps_s=[0.002], further_nodes=6)
    for _ in range(20):
        prices.see_round(several)
    assert prices.node_share == pytest.approx(share, rel=0.01)
    assert restored(prices.state_dict()).node_share == prices.node_share


def test_a_round_in_which_the_draft_read_the_text_teaches_what_its_first_step_takes_alone() -> None:
    reading = replace(DRAFTED, reading_s=0.05, wall_s=0.25, growing_s=0.032)
    prices = replace(passes((1, 0.04), (8, 0.16)), draft_share=0.05)
    prices.see_round(reading)
    assert prices.step_s == pytest.approx(0.004)  # of 0.002 expected and 0.008 measured
    prices.see_round(reading)
    assert prices.step_s == pytest.approx(0.004, rel=0.05)


@example({"all_experts_s": 1.0, "sharing": 183.0})
@given(
    st.dictionaries(
        st.sampled_from((*passes((1, 0.04), (8, 0.16)).state_dict(), "0 rows", "99999 rows")),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=9,
    )
)
def test_no_numbers_make_prices_that_cannot_be_read(numbers: dict[str, float]) -> None:
    seconds = passes((4, 0.1), prices=restored(numbers)).pass_s(np.arange(1, 50))
    assert np.isfinite(seconds).all() and (seconds >= 0).all()
