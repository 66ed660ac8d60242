"""Confidences are honest probabilities, whoever speaks: one learner for all sources."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_cases import ask, text_of

from edgespec.engine.sources.mixer import MAX_RECALLED, Mixer, Numbers
from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.source import Opinion
from edgespec.pool import line
from fake_model import FakeModel

WIDE_VOCAB = 50


def drafted(logits: np.ndarray, n_candidates: int = 8) -> Opinion:
    """The opinion of a draft model with these logits."""
    model = FakeModel(lambda _: logits.astype(np.float32), len(logits))
    source = ModelSource(model, n_candidates, len(logits), frozenset())
    (opinion,) = ask(source, line(0, [0]), [0], text_of([]))
    assert opinion is not None
    return opinion


def said(source: str, *guesses: tuple[int, float]) -> Opinion:
    """The opinion of a source that has weighed every token."""
    tokens, probabilities = zip(*guesses, strict=True)
    return Opinion(source, tokens, probabilities, min(1.0, sum(probabilities)), is_exhaustive=True)


def found(source: str, token: int, chance: float = 0.6, kind: str = "4!") -> Opinion:
    """The opinion of a source that looked something up."""
    return Opinion(source, [token], [1.0], chance, kind)


def confidences(mixer: Mixer, *opinions: Opinion) -> dict[int, float]:
    return {guess.token: guess.confidence for guess in mixer.mix(opinions)}


def taught(temperature: float, n: int, mixer: Mixer | None = None, seed: int = 1) -> Mixer:
    """After `n` nodes where the target picked by softmax(draft logits / temperature)."""
    random = np.random.default_rng(seed)
    mixer = mixer or Mixer()
    for _ in range(n):
        logits = 4 * random.standard_normal(WIDE_VOCAB)
        weights = np.exp((logits - logits.max()) / temperature)
        picked = random.choice(WIDE_VOCAB, p=weights / weights.sum())
        mixer.observe([drafted(logits)], int(picked))
    return mixer


def temperature_of(mixer: Mixer) -> float:
    return math.exp(-mixer.state_dict()["draft sharpness"])


def taught_by(mixer: Mixer, opinions: Sequence[Opinion], *picked: int) -> Mixer:
    for token in picked:
        mixer.observe(opinions, token)
    return mixer


# A draft model's opinion


def test_an_opinion_is_the_softmax_best_first() -> None:
    opinion = drafted(np.log(np.array([0.1, 0.6, 0.05, 0.25])), 3)
    assert opinion.tokens == [1, 3, 0]
    assert opinion.probabilities == pytest.approx([0.6, 0.25, 0.1])
    assert opinion.chance == pytest.approx(0.95)


def test_a_draft_that_yields_no_number_is_reported() -> None:
    model = FakeModel(lambda _: np.array([0.0, np.nan], np.float32), 2)
    source, text = ModelSource(model, 1, 2, frozenset()), text_of([])
    assert ask(source, line(0, [0]), [0], text) == [None]
    assert "best logit is nan" in str(source.obstacle(text))


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.2, 0.35, 0.7, 1.0, 2.0])
def test_the_draft_s_own_temperature_is_found(temperature: float) -> None:
    assert temperature_of(taught(temperature, 400)) == pytest.approx(temperature, rel=0.25)


def test_a_token_that_was_not_named_tells_nothing_of_a_source_s_temperature() -> None:
    mixer = taught_by(Mixer(), [Opinion("draft", (1, 2), (0.4, 0.2), 0.6)], *9 * [3])
    assert temperature_of(mixer) == pytest.approx(1.0)


def test_a_draft_whose_guesses_are_never_right_is_soon_not_believed() -> None:
    opinion = drafted(np.array([5.0, 1.0, 0.0, 0.0]), 2)
    mixer = taught_by(Mixer(), [opinion], *8 * [3])
    assert confidences(mixer, opinion)[0] < 0.4
    taught_by(mixer, [opinion], *42 * [3])
    assert confidences(mixer, opinion)[0] < 0.1


# Several sources


SOURCES = ("draft", "lookup", "recycled")
OPINIONS = st.lists(
    st.builds(
        lambda source, shares, chance, first, whole: Opinion(
            source,
            range(first, first + len(shares)),
            [share / sum(shares) for share in sorted(shares, reverse=True)],
            chance,
            is_exhaustive=whole,
        ),
        st.sampled_from(SOURCES),
        st.lists(st.floats(1e-30, 1.0), min_size=1, max_size=4),
        st.floats(0, 1),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda opinion: opinion.source,
)


@pytest.mark.slow
@given(st.lists(st.tuples(OPINIONS, st.integers(0, 9)), max_size=30), OPINIONS)
def test_confidences_are_a_distribution_best_first(
    seen: list[tuple[list[Opinion], int]], opinions: list[Opinion]
) -> None:
    mixer = Mixer()
    for before, picked in seen:
        mixer.observe(before, picked)
    guesses = mixer.mix(opinions)
    chances = [guess.confidence for guess in guesses]
    assert chances == sorted(chances, reverse=True)
    assert all(0 <= chance <= 1 for chance in chances) and sum(chances) <= 1.0 + 1e-9
    tokens = [guess.token for guess in guesses]
    assert sorted(tokens) == sorted({token for opinion in opinions for token in opinion.tokens})


def test_a_guess_keeps_the_first_source_that_named_it_and_its_probability() -> None:
    guesses = Mixer().mix([said("draft", (1, 0.6), (2, 0.3)), found("lookup", 1)])
    assert {guess.token: (guess.source, guess.probability) for guess in guesses} == {
        1: ("draft", 0.6),
        2: ("draft", 0.3),
    }


def test_no_opinion_gives_no_guess() -> None:
    assert Mixer().mix([]) == []


@pytest.mark.parametrize("others", [["lookup"], ["lookup", "recycled"]])
def test_agreement_raises_confidence(others: list[str]) -> None:
    draft = said("draft", (1, 0.6), (2, 0.3))
    agreed = confidences(Mixer(), draft, *[found(source, 1) for source in others])
    assert agreed[1] > confidences(Mixer(), draft, found(others[0], 2))[1]
    assert agreed[1] > confidences(Mixer(), draft)[1]
    if len(others) > 1:
        assert agreed[1] > confidences(Mixer(), draft, found("lookup", 1))[1]


def test_an_agreement_that_was_right_is_surer_than_what_either_says() -> None:
    opinions = [said("draft", (1, 0.9), (9, 0.01)), found("lookup", 1, 0.8)]
    mixer = taught_by(Mixer(), opinions, *30 * [1])
    assert confidences(mixer, *opinions)[1] > 0.95


def test_an_agreement_that_fails_is_believed_less() -> None:
    opinions = [said("draft", (1, 0.9)), found("lookup", 1, 0.8)]
    mixer = taught_by(Mixer(), opinions, *30 * [1, 5])
    assert confidences(mixer, *opinions)[1] < 0.7


@pytest.mark.parametrize(("picked", "expected"), [(3, 0.9), (1, 0.1)])
def test_a_source_counts_as_much_as_it_was_right(picked: int, expected: float) -> None:
    opinions = [said("draft", (1, 0.5)), found("lookup", 3, 0.9)]
    mixer = taught_by(Mixer(), opinions, *60 * [picked])
    assert confidences(mixer, *opinions)[3] == pytest.approx(expected, abs=0.1)


def test_a_useless_source_loses_its_weight_and_costs_the_others_nothing() -> None:
    draft, useless = said("draft", (1, 0.7), (2, 0.2)), found("lookup", 3)
    mixer = taught_by(Mixer(), [draft, useless], *40 * [1, 1, 1, 2])
    beside, alone = confidences(mixer, draft, useless), confidences(mixer, draft)
    assert beside[3] < 0.02
    assert beside[1] == pytest.approx(alone[1], abs=0.02)


def test_a_sure_draft_loses_little_to_an_unsure_guess() -> None:
    unsure = found("lookup", 2, 0.3)
    beside_sure, beside_unsure = (
        confidences(Mixer(), said("draft", (1, p), (9, 0.01)), unsure) for p in (0.95, 0.4)
    )
    assert beside_sure[1] > 0.9
    assert beside_unsure[2] > 2 * beside_sure[2]


def test_kinds_of_opinions_and_sources_are_learnt_apart() -> None:
    mixer = Mixer()
    before = confidences(mixer, found("lookup", 2, kind="2"))[2]
    taught_by(mixer, [found("lookup", 2, kind="24!")], *20 * [2])
    assert confidences(mixer, found("lookup", 2, kind="24!"))[2] > 0.9
    assert confidences(mixer, found("lookup", 2, kind="2"))[2] == pytest.approx(before)
    assert confidences(mixer, found("recycled", 2, kind="24!"))[2] == pytest.approx(before)


# What is kept


def test_another_run_goes_on_and_is_sooner_convinced_of_the_contrary() -> None:
    opinions = [said("draft", (1, 0.5)), found("lookup", 3)]
    mixer, recalled = taught_by(Mixer(), opinions, *300 * [3, 3, 3, 1]), Mixer()
    recalled.load_state_dict(mixer.state_dict())
    assert confidences(recalled, *opinions) == pytest.approx(confidences(mixer, *opinions))
    precisions = [value for name, value in recalled.state_dict().items() if "precision" in name]
    assert max(precisions) <= MAX_RECALLED
    for one in (mixer, recalled):
        taught_by(one, opinions, 1, 1, 1)
    assert confidences(recalled, *opinions)[3] < confidences(mixer, *opinions)[3]


@pytest.mark.parametrize(
    "numbers",
    [
        {"draft sharpness": 1e9, "draft sharpness precision": 1.0},
        {"draft sharpness": 1.0},
        {"draft sharpness": 1.0, "draft sharpness precision": -5.0},
        {"draft sharpness precision": 3.0},
    ],
)
def test_impossible_weights_are_not_recalled(numbers: Numbers) -> None:
    mixer = Mixer()
    mixer.load_state_dict(numbers)
    opinion = said("draft", (1, 0.5))
    assert confidences(mixer, opinion) == confidences(Mixer(), opinion)
