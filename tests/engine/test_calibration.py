from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.drafting.calibration import Calibration, Offer
from edgespec.errors import ModelError

N_VOCAB = 50
HONEST = Calibration.around(1.0)


def taught(temperature: float, n: int, begin: Calibration, seed: int = 1) -> Calibration:
    """After `n` nodes where the target picked by softmax(draft logits / temperature)."""
    random = np.random.default_rng(seed)
    rule = begin
    for _ in range(n):
        logits = (4 * random.standard_normal(N_VOCAB)).astype(np.float32)
        weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
        picked = random.choice(N_VOCAB, p=weights / weights.sum())
        rule = rule.observe(rule.offer(logits, 8), int(picked))
    return rule


def test_an_offer_is_the_softmax_best_first() -> None:
    offer = HONEST.offer(np.log(np.array([0.1, 0.6, 0.05, 0.25], np.float32)), 3)
    assert offer.tokens == [1, 3, 0]
    assert offer.probabilities == pytest.approx([0.6, 0.25, 0.1])
    assert HONEST.confidences(offer) == pytest.approx([0.6, 0.25, 0.1])


def test_a_temperature_below_one_makes_guesses_surer() -> None:
    rule = Calibration.around(0.5)
    offer = rule.offer(np.log(np.array([0.2, 0.8], np.float32)), 2)
    assert rule.confidences(offer)[0] == pytest.approx(0.64 / 0.68, abs=0.02)
    assert offer.probabilities[0] == pytest.approx(0.8)


def test_an_offer_leaves_the_logits_as_they_are() -> None:
    logits = np.array([1.0, 2.0], np.float32)
    HONEST.offer(logits, 1)
    assert logits.tolist() == [1.0, 2.0]


def test_huge_logits_give_probabilities() -> None:
    offer = HONEST.offer(np.array([1e30, 0.0], np.float32), 1)
    assert (offer.tokens, offer.probabilities) == ([0], [1.0])
    assert HONEST.confidences(offer) == pytest.approx([1.0], abs=0.02)


def test_a_draft_that_yields_no_number_is_reported() -> None:
    with pytest.raises(ModelError, match="nan"):
        HONEST.offer(np.array([0.0, np.nan], np.float32), 1)


@pytest.mark.parametrize("temperature", [0.2, 0.35, 0.7, 1.0, 2.0])
def test_the_draft_s_own_temperature_is_found(temperature: float) -> None:
    found = taught(temperature, 400, Calibration.around(0.6)).temperature
    assert found == pytest.approx(temperature, rel=0.25)


@pytest.mark.parametrize("temperature", [0.35, 1.5])
def test_a_few_rounds_bring_the_belief_nearer(temperature: float) -> None:
    found = taught(temperature, 30, Calibration.around(0.6)).temperature
    assert abs(math.log(found / temperature)) < 0.6 * abs(math.log(0.6 / temperature))


def test_a_draft_that_changes_is_believed_anew() -> None:
    sure = taught(0.3, 600, Calibration.around(0.6))
    assert taught(1.0, 600, sure, seed=2).temperature == pytest.approx(1.0, rel=0.25)


def test_a_draft_whose_guesses_are_never_right_is_soon_not_believed() -> None:
    rule = Calibration.around(0.6)
    offer = rule.offer(np.array([5.0, 1.0, 0.0, 0.0], np.float32), 2)
    for _ in range(8):
        rule = rule.observe(offer, 3)
    assert rule.confidences(offer)[0] < 0.4
    for _ in range(42):
        rule = rule.observe(offer, 3)
    assert rule.confidences(offer)[0] < 0.1


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-80, 80, width=32), min_size=4, max_size=4), st.integers(0, 3)
        ),
        max_size=40,
    ),
    st.lists(st.floats(-80, 80, width=32), min_size=4, max_size=4),
)
def test_confidences_are_probabilities_in_the_draft_s_own_order(
    seen: list[tuple[list[float], int]], logits: list[float]
) -> None:
    rule = Calibration.around(0.6)
    for row, picked in seen:
        rule = rule.observe(rule.offer(np.array(row, np.float32), 2), picked)
    offer: Offer = rule.offer(np.array(logits, np.float32), 3)
    confidences = rule.confidences(offer)
    assert confidences == sorted(confidences, reverse=True)
    assert all(c >= 0 for c in confidences) and sum(confidences) <= 1.0 + 1e-9
    assert 0.05 <= rule.temperature <= 5.0
