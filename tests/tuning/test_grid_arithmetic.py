"""How the script that samples a grid compares a preset with the best of many noisy runs."""

from __future__ import annotations

import random

import pytest

from edgespec.tuning.cost_model import Choice
from measure_tuned_grid import held_out_ratio, meant, said, sampled
from tuning_lab import DRAFT


def test_luck_does_not_count_for_the_best():
    """Twenty settings that are all alike: their fastest median is above the preset's by luck."""
    noise = random.Random(1)
    names = ["preset", *map(str, range(20))]
    ratios = [
        held_out_ratio([{name: noise.gauss(10, 1) for name in names} for _ in range(6)], "preset")
        for _ in range(100)
    ]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.03)


def test_a_preset_that_is_slower_is_said_to_be():
    turns = [{"preset": 9.0, "better": 10.0, "worse": 5.0} for _ in range(6)]
    assert held_out_ratio(turns, "preset") == pytest.approx(0.9)


def test_the_sample_is_what_its_lines_say():
    usual = Choice(DRAFT, 2)
    sample = sampled(usual, 60)
    assert len(set(sample)) == 60 and usual not in sample
    assert all(meant(said(choice), usual) == choice for choice in (usual, *sample))
