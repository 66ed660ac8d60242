"""The formulas that decide speed."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec import theory


def test_reads_hide_computing_and_computing_hides_reads():
    assert theory.pass_seconds(600, 300, compute_s=1) == 2
    assert theory.pass_seconds(600, 300, compute_s=3) == 3


def test_what_a_pass_yields_is_paid_once():
    assert theory.seconds_per_token(2.0, 4, draft_s=0.4) == pytest.approx(0.6)


def test_neighbouring_rows_choose_alike():
    """As measured on a mixture of 16 experts, 4 of them used."""
    chosen = 16 * theory.chosen_share(0.25, np.array([1, 4, 8, 16]))
    assert chosen == pytest.approx([4, 10.1, 12.8, 13.7], rel=0.15)
