"""The formulas that decide speed."""

from __future__ import annotations

import pytest

from edgespec import theory


def test_a_line_of_guesses_yields_the_sum_of_its_chances():
    assert theory.expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_guesses_that_are_always_right_all_stand():
    assert theory.expected_tokens(1.0, 7) == 8


def test_guesses_that_cost_as_much_as_a_pass_gain_nothing():
    assert theory.line_speedup(0.5, 1, c=1.0) < 1 < theory.line_speedup(0.8, 4, c=0.05)


def test_reads_hide_computing_and_computing_hides_reads():
    assert theory.pass_seconds(600, 300, compute_s=1) == 2
    assert theory.pass_seconds(600, 300, compute_s=3) == 3


def test_what_a_pass_yields_is_paid_once():
    assert theory.seconds_per_token(2.0, 4, draft_s=0.4) == pytest.approx(0.6)


def test_more_is_worth_its_cost_while_its_rate_is_above_the_average():
    assert theory.is_worth(0.5, 0.1, tokens=4, seconds=1)
    assert not theory.is_worth(0.3, 0.1, tokens=4, seconds=1)
