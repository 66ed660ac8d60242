"""The laws of passes and guesses that stand before anything is measured."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec import theory


def test_neighbouring_rows_choose_alike():
    """Measured on a mixture of 16 experts, 4 of them used."""
    chosen = 16 * theory.chosen_share(0.25, np.array([1, 4, 8, 16]))
    assert chosen == pytest.approx([4, 10.1, 12.8, 13.7], rel=0.15)


def test_larger_trees_bring_less_and_less_more():
    """Measured on three pairs, relative to trees of 48 guesses."""
    found = theory.tree_tokens(np.array([16.0, 32, 48, 64, 96, 128])) / theory.tree_tokens(48.0)
    assert found == pytest.approx([0.76, 0.93, 1, 1.05, 1.09, 1.12], rel=0.02)


def test_a_pass_without_guesses_yields_its_own_token():
    assert theory.tree_tokens(0.0) == 1
