"""The formulas that decide speed."""

from __future__ import annotations

import numpy as np
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


def test_what_keeps_the_rate_is_worth_it():
    assert theory.is_worth(0.4, 0.1, tokens=4, seconds=1)


def test_a_tree_yields_the_chances_of_its_most_probable_nodes():
    chances = np.array([1.0, 0.2, 0.5])
    assert theory.tree_tokens(chances) == pytest.approx([1.0, 1.5, 1.7])


def test_drafting_ends_where_the_next_guess_would_lower_the_rate():
    chances, pass_s = np.array([1.0, 0.8, 0.4, 0.1]), np.array([1.0, 1.2, 1.4, 1.6])
    tokens = theory.tree_tokens(chances)
    best = theory.best_round(tokens, pass_s)
    added_s = 0.2
    assert theory.is_worth(chances[best], added_s, tokens[best - 1], pass_s[best - 1])
    assert not theory.is_worth(chances[best + 1], added_s, tokens[best], pass_s[best])
