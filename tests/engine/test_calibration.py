from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.calibration import Calibration


def taught(
    truth: Callable[[float], float], n: int, begin: Calibration | None = None
) -> Calibration:
    """After `n` nodes with one guess each, which stands with probability truth(p)."""
    draw = random.Random(1)
    rule = begin or Calibration()
    for _ in range(n):
        p = draw.uniform(0.02, 0.98)
        rule = rule.observe([(p, draw.random() < truth(p))])
    return rule


def overconfident(p: float) -> float:
    return 0.5 * p


def never(p: float) -> float:
    return 0.0


def test_confidences_are_taken_as_they_are_at_first() -> None:
    assert Calibration().confidence(0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_an_honest_draft_is_believed(p: float) -> None:
    assert taught(lambda p: p, 500).confidence(p) == pytest.approx(p, abs=0.07)


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_an_overconfident_draft_is_believed_less(p: float) -> None:
    assert taught(overconfident, 500).confidence(p) == pytest.approx(0.5 * p, abs=0.12)


def test_a_draft_that_is_never_right_is_soon_not_believed() -> None:
    assert taught(never, 8).confidence(0.9) < 0.4
    assert taught(never, 50).confidence(0.9) < 0.1


def test_a_draft_that_becomes_right_is_believed_again() -> None:
    doubted = taught(never, 300)
    assert taught(lambda p: p, 600, doubted).confidence(0.8) > 0.6


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_likelier_guess_never_becomes_the_less_likely_one(
    seen: list[tuple[float, bool]], one: float, other: float
) -> None:
    rule = Calibration().observe(seen)
    low, high = sorted((one, other))
    assert 0 <= rule.confidence(low) <= rule.confidence(high) <= 1
    assert all(math.isfinite(value) for value in (rule.slope, rule.offset, *rule.covariance))
