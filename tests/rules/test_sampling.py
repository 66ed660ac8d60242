from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import ModelError, UsageError
from edgespec.rules.filters import top_tokens
from edgespec.rules.noise import Noise
from edgespec.rules.sampling import Sampler, SamplingParams, distribution
from sentences import refuses

PROBABILITIES = [0.1, 0.4, 0.05, 0.3, 0.15]
LOGITS = np.log(np.array(PROBABILITIES, np.float32))


def kept(params: SamplingParams, logits: np.ndarray = LOGITS) -> list[int]:
    tokens, _ = distribution(logits, params)
    return [int(token) for token in tokens]


def test_the_default_is_greedy() -> None:
    assert kept(SamplingParams()) == [1]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert kept(SamplingParams(), np.array([0.0, 2.0, 2.0], np.float32)) == [1]


def test_temperature_one_is_the_softmax() -> None:
    _, probabilities = distribution(LOGITS, SamplingParams(temperature=1.0))
    assert probabilities == pytest.approx(PROBABILITIES)


def test_temperature_divides_the_logits() -> None:
    _, probabilities = distribution(LOGITS, SamplingParams(temperature=0.5))
    squares = np.square(PROBABILITIES)
    assert probabilities == pytest.approx(squares / squares.sum())


def test_top_k_keeps_the_best() -> None:
    assert kept(SamplingParams(temperature=1.0, top_k=2)) == [1, 3]


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    assert kept(SamplingParams(temperature=1.0, top_p=0.69)) == [1, 3]
    assert kept(SamplingParams(temperature=1.0, top_p=0.71)) == [1, 3, 4]


def test_top_p_counts_within_top_k() -> None:
    """Among 0.4 and 0.3 alone, the first has a share of 0.57."""
    assert kept(SamplingParams(temperature=1.0, top_k=2, top_p=0.55)) == [1]
    assert kept(SamplingParams(temperature=1.0, top_k=2, top_p=0.59)) == [1, 3]
    assert kept(SamplingParams(temperature=1.0, top_k=3, top_p=0.81)) == [1, 3]


def test_top_p_looks_at_probabilities_before_temperature() -> None:
    hot = SamplingParams(temperature=5.0, top_p=0.69)
    assert kept(hot) == [1, 3]


def test_top_p_of_a_flat_vocabulary_keeps_its_share() -> None:
    flat = np.zeros(5000, np.float32)
    assert len(kept(SamplingParams(temperature=1.0, top_p=0.4999), flat)) == 2500


def test_min_p_keeps_what_is_near_the_best() -> None:
    assert kept(SamplingParams(temperature=1.0, min_p=0.5)) == [1, 3]


def test_logit_bias_moves_and_forbids_tokens() -> None:
    assert kept(SamplingParams(logit_bias={2: 10.0})) == [2]
    assert kept(SamplingParams(logit_bias={1: -math.inf})) == [3]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    params = SamplingParams(temperature=1.0, repeat_penalty=2.0)
    _, probabilities = distribution(logits, params, recent=[0, 1])
    expected = np.exp([1.0, -4.0, 1.0])
    assert probabilities == pytest.approx(expected / expected.sum())


def test_frequency_penalty_counts_and_presence_penalty_does_not() -> None:
    logits = np.zeros(3, np.float32)
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.25)
    _, probabilities = distribution(logits, params, recent=[0, 0, 1])
    expected = np.exp([-1.25, -0.75, 0.0])
    assert probabilities == pytest.approx(expected / expected.sum())


def test_penalties_look_at_the_last_n_tokens_prompt_included() -> None:
    params = SamplingParams(repeat_penalty=100.0, repeat_last_n=2)
    logits = np.array([3.0, 2.0, 1.0], np.float32)
    sampler = Sampler(params, prompt=[0, 0])
    assert [sampler.pick(logits) for _ in range(4)] == [1, 2, 0, 1]


def test_a_sampler_leaves_the_logits_as_they_are() -> None:
    logits = LOGITS.copy()
    params = SamplingParams(
        temperature=1.0, repeat_penalty=2.0, logit_bias={0: 1.0}, top_p=0.9, min_p=0.1
    )
    Sampler(params, prompt=[1]).pick(logits)
    assert np.array_equal(logits, LOGITS)


def test_a_seed_gives_its_text_again() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    one, other = Sampler(params), Sampler(params)
    assert [one.pick(LOGITS) for _ in range(50)] == [other.pick(LOGITS) for _ in range(50)]


def test_seeds_differ() -> None:
    texts = {
        tuple(sampler.pick(LOGITS) for _ in range(20))
        for sampler in (Sampler(SamplingParams(temperature=1.0, seed=seed)) for seed in range(5))
    }
    assert len(texts) == 5


def test_every_token_has_the_noise_of_its_position_whatever_is_left() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    one, other = Sampler(params), Sampler(params)
    one.pick(LOGITS)
    other.pick(np.array([0.0, -np.inf, -np.inf, -np.inf, -np.inf], np.float32))
    assert [one.pick(LOGITS) for _ in range(20)] == [other.pick(LOGITS) for _ in range(20)]


def test_draws_follow_the_distribution() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=11))
    counts = np.bincount([sampler.pick(LOGITS) for _ in range(4000)], minlength=5)
    assert np.abs(counts / 4000 - PROBABILITIES).max() < 0.03


def test_an_impossible_token_is_never_drawn() -> None:
    """Also not when its logit is so low that its probability is rounded to nothing."""
    assert kept(SamplingParams(temperature=0.1), np.array([0.0, -1e6, -np.inf], np.float32)) == [0]


def test_rounding_hardly_ever_changes_the_token_that_is_drawn() -> None:
    """A flat vocabulary of 4096 and logits that are off by 0.01: with the cumulative distribution
    inverted, two texts of one seed parted after a handful of tokens."""
    random = np.random.default_rng(1)
    one, other = (Sampler(SamplingParams(temperature=1.0, seed=2)) for _ in range(2))
    n_different = 0
    for _ in range(400):
        logits = random.standard_normal(4096).astype(np.float32)
        rounded = logits + 0.01 * random.standard_normal(4096).astype(np.float32)
        n_different += one.pick(logits) != other.pick(rounded)
    assert n_different <= 8


@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=400),
    st.integers(1, 20),
)
def test_top_tokens_are_those_of_a_full_sort(values: list[int], k: int) -> None:
    logits = np.array(values, np.float32)
    assert top_tokens(logits, k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()


def test_top_tokens_of_a_large_vocabulary_are_those_of_a_full_sort() -> None:
    logits = np.random.default_rng(0).standard_normal(151_936).astype(np.float32)
    assert top_tokens(logits, 40).tolist() == np.argsort(-logits, kind="stable")[:40].tolist()


def test_a_model_that_yields_no_number_is_reported() -> None:
    with pytest.raises(ModelError):
        Sampler(SamplingParams()).pick(np.array([0.0, np.nan], np.float32))


class Only:
    """A constraint that allows some tokens."""

    def __init__(self, mask: Sequence[bool] | np.ndarray) -> None:
        self.mask = np.array(mask)

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        return self.mask

    def take(self, token: int) -> None: ...

    def forced(self, most: int) -> list[int]:
        return []


def test_damaged_logits_are_reported_although_a_grammar_forbids_their_tokens() -> None:
    """Log probabilities would be no numbers."""
    sampler = Sampler(SamplingParams(), constraint=Only([True, False]), n_logprobs=1)
    with pytest.raises(ModelError):
        sampler.pick(np.array([0.0, np.nan], np.float32))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_bias_that_leaves_no_token_is_refused(temperature: float) -> None:
    """It is the request's fault, and had been told as a damaged model's."""
    params = SamplingParams(temperature=temperature, logit_bias={0: -math.inf})
    with refuses(UsageError):
        Sampler(params, constraint=Only([True, False])).pick(np.array([0.0, 1.0], np.float32))
    params = params.model_copy(update={"logit_bias": {0: -math.inf, 1: -math.inf}})
    with refuses(UsageError):
        Sampler(params).pick(np.array([0.0, 1.0], np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repeat_penalty", 0.0),
        ("frequency_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("repeat_last_n", -2),
        ("seed", -1),
        ("logit_bias", {0: math.nan}),
        ("logit_bias", {0: math.inf}),
        ("logit_bias", {-1: 0.0}),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(name: str, value: object) -> None:
    with refuses(UsageError):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


FILTERS = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k in (0, 1, 5, 40)
    for top_p in (0.3, 0.95, 1.0)
    for min_p in (0.0, 1e-9, 0.05, 0.3, 1.0)
]


@pytest.mark.parametrize("n_vocab", [300, 9_000])
@pytest.mark.parametrize("n_allowed", [0, 1, 2, 7, 63, 64, 65, 300, 9_000])
def test_a_draw_is_the_best_score_that_passes_the_filters_and_the_best_are_foreseen(
    n_allowed: int, n_vocab: int
) -> None:
    """Whatever a grammar leaves of a vocabulary. Fewer tokens than were asked for had ended a draft
    without filters in a number that is none."""
    random = np.random.default_rng(n_allowed)
    for position, filters in enumerate(FILTERS):
        temperature = (0.1, 0.8, 1.5)[position % 3]
        logits = random.normal(0, (0.3, 2.0, 8.0, 3.0)[position % 4], n_vocab).astype(np.float32)
        if position % 2:
            logits = np.round(logits)  # with equal ones
        mask = random.permutation(n_vocab) < n_allowed
        sampler = Sampler(
            SamplingParams(temperature=temperature, seed=3, **filters), (), Only(mask)
        )
        sampler.n_accepted = position
        if not n_allowed:
            assert sampler.foresee(logits, 8) == ([], [])
            with pytest.raises(UsageError):
                sampler.draw(logits)
            continue
        tokens, _ = distribution(np.where(mask, logits, np.float32(-np.inf)), sampler.params)
        scores = logits[tokens] + temperature * Noise(3).gumbel(position, tokens)
        best = tokens[np.argsort(-scores, kind="stable")]
        foreseen, shares = sampler.foresee(logits, 8)
        assert sampler.draw(logits) == best[0] == foreseen[0], filters
        assert foreseen[: len(best)] == best[:8].tolist(), filters
        assert 0 < sum(shares) <= 1 + 1e-9
        if not position % 2:  # columns of a draft whose vocabulary is another one
            some = random.permutation(n_vocab)
            assert sampler.foresee(logits[some], 8, tokens=some)[0] == foreseen, filters
