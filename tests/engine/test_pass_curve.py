from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.drafting.state_store import state_of
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.values import PassReport


def passes(*measured: tuple[int, float], curve: PassCurve | None = None) -> PassCurve:
    """After passes of these rows and seconds, none of which waited."""
    curve = deepcopy(curve) if curve is not None else PassCurve()
    for n_rows, seconds in measured:
        curve.see_pass(n_rows, PassReport(wall_s=seconds))
    return curve


def after_prompt(report: PassReport, n_context: int | None = None) -> PassCurve:
    curve = PassCurve()
    curve.see_prompt(report, n_context)
    return curve


def restored(numbers: Mapping[str, float], curve: PassCurve | None = None) -> PassCurve:
    """A curve of another run."""
    curve = curve or PassCurve()
    curve.restore(numbers)
    return curve


def mixed(used_share: float) -> PassCurve:
    return PassCurve(ExpertStalls(used_share))


def test_steps_and_kinks_are_kept() -> None:
    """One row, two rows, a tile of eight, and more."""
    curve = passes((1, 0.040), (2, 0.074), (8, 0.160), (13, 0.233))
    assert [curve.second(n) for n in (1, 2, 8, 13)] == pytest.approx([0.040, 0.074, 0.160, 0.233])
    assert curve.second(5) == pytest.approx(0.117)
    assert curve.second(18) == pytest.approx(0.306)


def test_the_prompt_tells_what_a_row_costs() -> None:
    curve = after_prompt(PassReport(wall_s=0.5, n_tokens=35))
    curve = passes((1, 0.04), curve=curve)
    assert curve.second(8) == pytest.approx(0.04 + 7 * 0.46 / 34)


def test_a_prompt_of_several_passes_tells_what_one_of_them_costs() -> None:
    report = PassReport(wall_s=2.0, n_tokens=128, passes=4)
    assert after_prompt(report).second(32) == pytest.approx(0.5)


@pytest.mark.parametrize("n_tokens", [1, 4])
def test_a_short_prompt_tells_what_rows_cost_beside_reads(n_tokens: int) -> None:
    report = PassReport(wall_s=2.0, stall_s=1.9, read_s=2.0, n_tokens=n_tokens)
    curve = after_prompt(report)
    assert curve.read_s == pytest.approx(2.0)
    assert float(curve.compute_s(np.array([n_tokens]))[0]) == pytest.approx(0.1)


ATTENTION_S = 2e-5
"""Seconds that a row takes for each token before it."""


def in_a_text(n_rows: int, n_context: float) -> float:
    return 0.05 + 0.01 * n_rows + ATTENTION_S * n_context * n_rows


def prompt(n_tokens: int, n_context: int, batch: int = 100) -> PassReport:
    """Reading the last `n_tokens` of a text."""
    passes = n_tokens // batch
    return PassReport(
        wall_s=passes * in_a_text(batch, n_context - n_tokens / 2), passes=passes, n_tokens=n_tokens
    )


def after_a_short_text() -> PassCurve:
    curve = after_prompt(prompt(100, 100), 100)
    return passes(*[(n, in_a_text(n, 100)) for n in (1, 2, 4, 8, 8, 4, 2, 1)], curve=curve)


@pytest.mark.parametrize("n_read", [4000, 15_900])
def test_a_long_prompt_tells_what_rows_cost_at_its_end(n_read: int) -> None:
    """Passes were expected to take what they took in short texts: up to a sixth."""
    curve = after_a_short_text()
    if n_read < 15_900:
        curve.see_prompt(prompt(16_000 - n_read - 100, 16_000 - n_read), 16_000 - n_read)
    curve.see_prompt(prompt(n_read, 16_000), 16_000)
    for n_rows in (1, 2, 4, 8):
        assert curve.second(n_rows) == pytest.approx(in_a_text(n_rows, 16_000), rel=0.1)


def test_a_short_text_after_a_long_one_is_not_taken_for_long() -> None:
    curve = after_a_short_text()
    curve.see_prompt(prompt(15_900, 16_000), 16_000)
    curve.see_prompt(prompt(100, 100), 100)
    for n_rows in (1, 2, 4, 8):
        assert curve.second(n_rows) == pytest.approx(in_a_text(n_rows, 100), rel=0.1)


def test_a_turn_that_adds_little_to_a_long_text_tells_nothing_of_attention() -> None:
    """Such a prompt was slow for other reasons, which passes of other sizes need not have."""
    curve = after_a_short_text()
    curve.see_prompt(prompt(15_900, 16_000), 16_000)
    slow = replace(prompt(100, 16_100), wall_s=3 * in_a_text(100, 16_050))
    curve.see_prompt(slow, 16_100)
    assert curve.second(1) < 1.3 * in_a_text(1, 16_000)


def test_while_single_rows_are_all_that_was_seen_a_further_one_is_cheaper() -> None:
    """Taken to cost a whole pass, it would never be tried."""
    assert passes((1, 2.0), (1, 2.0)).second(2) == pytest.approx(2.2)


@given(st.lists(st.tuples(st.integers(1, 97), st.floats(0.001, 10.0)), min_size=1, max_size=30))
def test_more_rows_never_cost_less(measured: list[tuple[int, float]]) -> None:
    seconds = passes(*measured).seconds(np.arange(1, 129))
    assert np.isfinite(seconds).all()
    assert (np.diff(seconds) >= -1e-12).all()


def test_rows_are_free_until_their_computing_takes_as_long_as_the_reads() -> None:
    """Reads of 1 s, 0.1 s of computing and 0.02 s a row: 45 rows are hidden."""
    curve = PassCurve()
    for n in (1, 9, 17, 25):
        report = PassReport(wall_s=1.0, stall_s=1.0 - 0.1 - 0.02 * n, read_s=1.0)
        curve.see_pass(n, report)
    assert curve.second(40) == curve.second(1) == pytest.approx(1.0)
    assert curve.second(70) == pytest.approx(1.5, rel=0.01)


def test_what_reads_take_is_what_the_store_measured() -> None:
    report = PassReport(wall_s=1.0, stall_s=0.9, read_s=0.6)
    curve = PassCurve()
    curve.see_pass(9, report)
    assert curve.read_s == pytest.approx(0.6)


def test_reads_beside_computing_take_longer_and_hide_no_more_rows() -> None:
    """40 ms alone, and twice that beside a pass of many rows, which never waits."""
    curve = PassCurve()
    curve.see_pass(1, PassReport(0.04, 0.025, read_s=0.04))
    for n in (8, 16, 24, 32):
        curve.see_pass(n, PassReport(0.01 + 0.005 * n, read_s=0.08))
    assert curve.read_s == pytest.approx(0.04)
    curve.see_pass(8, PassReport(0.08, 0.03, read_s=0.08))
    assert curve.read_s > 0.05


def test_a_further_row_of_a_mixture_costs_less_the_more_experts_are_chosen_already() -> None:
    curve = mixed(0.25)
    for n in (1, 2, 5, 9):
        choice_s = float(1 - 0.75 ** (n**0.75)) / 0.25
        report = PassReport(choice_s + 0.02 * n, choice_s, choice_s)
        curve.see_pass(n, report)
    assert curve.second(16) == pytest.approx(3.6 + 0.32, rel=0.1)
    added = np.diff(curve.seconds(np.array([2, 3, 8, 9, 20, 21])))[::2]
    assert added[0] > added[1] > added[2] > 0


def mixture(rows: int, first_s: float, all_s: float, curve: PassCurve) -> PassCurve:
    """After a pass that computed for a second and waited for experts, some of its first row."""
    report = PassReport(1.0 + all_s, all_s, all_s, first_row_stall_s=first_s)
    curve = deepcopy(curve)
    curve.see_pass(rows, report)
    return curve


def test_rows_of_a_mixture_that_share_nothing_cost_as_much_as_the_first() -> None:
    curve = mixed(1 / 16)
    for _ in range(16):
        curve = mixture(4, 0.5, 2.0 * 0.91, curve)  # of 16, 4 independent choices are 3.64
    assert curve.experts.seconds(1) == pytest.approx(0.5)
    assert curve.experts.seconds(4) == pytest.approx(1.82, rel=0.05)
    again = restored(state_of(curve, curve.experts), mixed(1 / 16))
    assert again.experts.seconds(4) == pytest.approx(curve.experts.seconds(4))


def test_the_first_row_tells_what_one_costs_though_all_passes_have_guesses() -> None:
    curve = mixed(1 / 16)
    for _ in range(3):
        curve = mixture(1, 0.5, 0.5, curve)
    for _ in range(60):
        curve = mixture(3, 0.1, 0.2, curve)
    assert curve.experts.seconds(1) == pytest.approx(0.1, rel=0.2)


def test_a_mixture_is_tried_with_twice_the_rows_that_were_seen() -> None:
    curve = mixture(1, 0.5, 0.5, mixed(1 / 16))
    assert curve.experts.max_rows == 2
    assert mixture(3, 0.5, 0.7, curve).experts.max_rows == 6


def test_another_run_knows_the_curve() -> None:
    taught = passes((1, 0.04), (2, 0.074), (8, 0.16), (13, 0.233))
    begun = restored(state_of(taught, taught.experts))
    rows = np.arange(1, 60)
    assert begun.seconds(rows) == pytest.approx(taught.seconds(rows))


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_what_another_run_learnt_is_rescaled_by_the_first_pass(times: float) -> None:
    taught = passes(*[(1, 0.04), (8, 0.16), (32, 0.5)] * 3)
    begun = restored(state_of(taught, taught.experts))
    begun = passes((1, times * 0.04), curve=begun)
    assert begun.second(8) == pytest.approx(times * 0.16, rel=0.02)


def test_passes_of_one_row_tell_that_the_machine_is_faster_now() -> None:
    curve = passes(*[(1, 0.08), (8, 0.32), (32, 1.0)] * 3, *[(1, 0.04)] * 15)
    assert curve.second(1) == pytest.approx(0.04, rel=0.1)
    assert curve.second(8) < 0.26


def test_a_slow_first_pass_between_known_sizes_counts_half() -> None:
    known = passes((1, 0.04), (32, 0.5))
    expected_s = known.second(8)
    assert passes((8, 4 * expected_s), curve=known).second(8) == pytest.approx(2 * expected_s)
    assert passes((8, 0.06), curve=known).second(8) == pytest.approx(0.06)


def test_a_slow_pass_moves_a_price_less_than_a_fast_one() -> None:
    known = passes(*[(1, 0.04)] * 3)
    assert passes((1, 0.12), curve=known).second(1) < 0.045
    assert passes((1, 0.02), curve=known).second(1) < 0.032


def test_the_price_of_one_row_is_sure_after_three_passes_or_where_reads_decide() -> None:
    assert not passes((1, 0.12), (1, 0.04)).is_sure
    assert passes((1, 0.04), (1, 0.04), (1, 0.04)).is_sure
    assert after_prompt(PassReport(2.0, 1.9, read_s=2.0, n_tokens=35)).is_sure


NAMES = (*state_of(passes((1, 0.04), (8, 0.16))), "rows 5", "seconds 5")


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.floats(allow_nan=False, allow_infinity=False), max_size=9
    )
)
def test_no_numbers_make_a_curve_that_cannot_be_read(numbers: dict[str, float]) -> None:
    seconds = passes((4, 0.1), curve=restored(numbers)).seconds(np.arange(1, 50))
    assert np.isfinite(seconds).all() and (seconds >= 0).all()
