"""Sources that name the same token are surer together than their mixture."""

from __future__ import annotations

import pytest

from edgespec.engine.drafting.agreement import Agreement
from edgespec.engine.drafting.drafter import Guess
from edgespec.engine.drafting.pooling import Pool


def said(source: str, token: int, confidence: float) -> list[Guess]:
    return [Guess(token, confidence, confidence, source), Guess(9, 0.01, 0.01, source)]


def test_what_two_sources_agree_on_is_surer_than_what_either_says_once_it_stood() -> None:
    opinions = [said("draft", 1, 0.9), said("lookup", 1, 0.8)]
    pool = Pool()
    for _ in range(30):
        pool.observe(opinions, 1)
    best, other = pool.pooled(opinions)
    assert best.confidence > 0.95
    assert best.confidence + other.confidence <= 1.0


def test_an_agreement_that_fails_is_believed_less_than_the_mixture() -> None:
    belief = Agreement()
    for n in range(60):
        belief = belief.observe(2, 0.9, stood=n % 2 == 0)
    assert belief.of(2, 0.9) < 0.7


def test_agreements_of_two_and_of_three_are_learnt_apart() -> None:
    belief = Agreement()
    for _ in range(30):
        belief = belief.observe(3, 0.9, stood=True)
    assert belief.of(3, 0.9) > belief.of(2, 0.9) == Agreement().of(2, 0.9)


def test_sources_that_differ_are_mixed_as_before() -> None:
    opinions = [said("draft", 1, 0.9), said("lookup", 2, 0.8)]
    before = Pool().pooled(opinions)
    taught = Pool()
    taught.belief = type(taught.belief)(agreement=Agreement().observe(2, 0.5, stood=True))
    assert taught.pooled(opinions) == before


def test_an_agreement_is_recalled_and_not_as_surely() -> None:
    belief = Agreement()
    for n in range(400):
        belief = belief.observe(2, 0.9, stood=n % 50 != 0)
    recalled = Agreement().recalled(belief.numbers())
    assert recalled.of(2, 0.9) == pytest.approx(belief.of(2, 0.9))
    assert recalled.numbers()["2 agree precision"] <= Agreement.most_recalled


@pytest.mark.parametrize("offset", [1e9, -5.0])
def test_an_impossible_agreement_is_not_recalled(offset: float) -> None:
    numbers = {"2 agree offset": offset, "2 agree precision": 1.0}
    assert Agreement().recalled(numbers) == Agreement()


def test_who_is_sure_counts_more_beside_one_who_is_not() -> None:
    """What a sure draft said lost a fifth of its confidence to any other guess."""
    unsure = said("lookup", 2, 0.4)
    beside_sure, beside_unsure = (
        {guess.token: guess.confidence for guess in Pool().pooled([said("draft", 1, p), unsure])}
        for p in (0.95, 0.4)
    )
    assert beside_sure[1] > 0.9
    assert beside_unsure[2] > 2 * beside_sure[2]


def test_a_source_that_is_right_where_others_are_sure_is_believed() -> None:
    opinions = [said("draft", 1, 0.9), said("lookup", 2, 0.6)]
    pool = Pool()
    for _ in range(30):
        pool.observe(opinions, 2)
    assert pool.pooled(opinions)[0].token == 2


def test_weights_of_sources_are_learnt_apart() -> None:
    pool = Pool()
    for _ in range(20):
        pool.observe([said("draft", 1, 0.5), said("lookup", 2, 0.6)], 2)
    weights = pool.belief.weights
    assert weights.of(said("lookup", 2, 0.6), 0.6) > weights.of(said("recycled", 2, 0.6), 0.6)
