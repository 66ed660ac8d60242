"""Guesses that know the dice: draws foreseen by logits that are not the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import GrammarError
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import Sampler, SamplingParams, distribution
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from fake_model import FakeModel, blend, random_language

N_VOCAB = 60
PROMPT = (1, 2, 3)
KINDS: dict[str, dict[str, Any]] = {
    "cool": {"temperature": 0.3},
    "warm": {"temperature": 0.8},
    "hot": {"temperature": 1.5},
    "top-k": {"temperature": 1.0, "top_k": 7},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "chat": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalties": {"temperature": 0.9, "repeat_penalty": 1.3, "frequency_penalty": 0.4},
    "bias": {"temperature": 1.0, "logit_bias": {0: 2.0, 5: -100.0}},
    "greedy, penalised": {"temperature": 0.0, "repeat_penalty": 1.5, "presence_penalty": 0.5},
}
kinds = pytest.mark.parametrize("kind", KINDS)


class Cycle:
    """A constraint: each token is one of those that have the same rest by 3 as its place."""

    def __init__(self, is_strict: bool = False) -> None:
        self.n_taken = 0
        self._is_strict = is_strict

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        if self._is_strict and self.n_taken + len(ahead) == 5:
            raise GrammarError("nothing is allowed here")
        return np.arange(N_VOCAB) % 3 == (self.n_taken + len(ahead)) % 3

    def take(self, token: int) -> None:
        assert token % 3 == self.n_taken % 3
        self.n_taken += 1

    def forced(self, most: int) -> list[int]:
        return []


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("n_vocab", [60, 20_000])
def test_draws_have_the_distribution(kind: str, n_vocab: int) -> None:
    """Chi-squared; of a thousand right samplers one would fail."""
    if KINDS[kind]["temperature"] == 0:
        pytest.skip("nothing is drawn at temperature 0")
    params = SamplingParams(seed=11, **KINDS[kind])
    n_draws = 100_000 if kind in {"warm", "chat"} else 10_000
    n_draws = n_draws if n_vocab < 100 else 4_000
    logits = (2 * np.random.default_rng(1).standard_normal(n_vocab)).astype(np.float32)
    sampler, recent = Sampler(params, prompt=PROMPT), list(PROMPT)
    tokens, p = distribution(logits, params, recent)
    counts = np.zeros(n_vocab)
    for n in range(n_draws):
        sampler.n_accepted = n
        counts[sampler.draw(logits)] += 1
    assert counts.sum() == counts[tokens].sum()
    order = np.argsort(-p)
    expected, seen = n_draws * p[order], counts[tokens][order]
    groups = np.minimum(np.cumsum(expected) // 20, np.cumsum(expected)[-1] // 20 - 1).astype(int)
    expected, seen = np.bincount(groups, expected), np.bincount(groups, seen)
    expected, seen = expected[expected > 0], seen[np.bincount(groups) > 0]
    chi = float(((seen - expected) ** 2 / expected).sum())
    n_free = len(expected) - 1
    assert chi < n_free + 3.1 * np.sqrt(2 * n_free) + 8


@kinds
def test_who_has_the_target_s_logits_foresees_every_draw(kind: str) -> None:
    params = SamplingParams(seed=5, **KINDS[kind])
    random = np.random.default_rng(2)
    rows = (3 * random.standard_normal((6, N_VOCAB))).astype(np.float32)
    sampler, other = (Sampler(params, PROMPT, Cycle()) for _ in range(2))
    text: list[int] = []
    for row in rows:
        tokens, shares = other.foresee(row, 4, len(text), text)
        text.append(sampler.pick(row))
        assert tokens[0] == text[-1]
        assert shares == sorted(shares, reverse=True)


@kinds
def test_a_draft_that_is_the_target_is_always_right(kind: str) -> None:
    language = random_language(3, N_VOCAB)
    request = TextRequest(PROMPT, SamplingParams(seed=2, **KINDS[kind]), 60)
    settings = EngineSettings(
        fallback="full", n_candidates=1, draft_max=8, step_aside=False, lookup=False
    )
    target, draft = FakeModel(language, N_VOCAB), FakeModel(language, N_VOCAB)
    with Engine(target, draft, settings) as engine:
        result = finish(engine.ask(engine.admit(request)))
    assert result.speculation.accepted_lengths[:-1] == (8,) * 6


@kinds
def test_a_few_logits_are_foreseen_like_all_of_them(kind: str) -> None:
    params = SamplingParams(seed=7, **KINDS[kind])
    logits = (3 * np.random.default_rng(4).standard_normal(N_VOCAB)).astype(np.float32)
    sampler = Sampler(params, PROMPT, Cycle())
    tokens = np.random.default_rng(5).permutation(N_VOCAB)
    few, its_shares = sampler.foresee(logits[tokens], 5, 2, [3, 4], tokens)
    whole, shares = sampler.foresee(logits, 5, 2, [3, 4])
    assert few == whole
    assert its_shares == pytest.approx(shares)


def test_a_constraint_that_fails_ahead_foresees_nothing_and_raises_nothing() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0), constraint=Cycle(is_strict=True))
    logits = np.zeros(N_VOCAB, np.float32)
    assert sampler.foresee(logits, 3, 5, [0, 1, 2, 3, 4])[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "min_p": 0.02}, {"repeat_penalty": 1.4}])
@pytest.mark.parametrize("n_padded", [0, 7])
def test_no_source_changes_the_text(
    temperature: float, filters: dict[str, Any], n_padded: int
) -> None:
    target, other = random_language(8, N_VOCAB), random_language(9, N_VOCAB)
    close = blend(target, other, 0.15)

    def padded(context: tuple[int, ...]) -> np.ndarray:
        return np.append(close(context), np.full(n_padded, 30.0, np.float32))

    sampling = SamplingParams(temperature=temperature, seed=6, **filters)
    texts = []
    for draft in (None, FakeModel(padded, N_VOCAB + n_padded)):
        settings = EngineSettings(step_aside=False, fallback="full", draft_max=12)
        with Engine(FakeModel(target, N_VOCAB), draft, settings) as engine:
            request = TextRequest(PROMPT, sampling, 80, constraint=Cycle())
            texts.append(finish(engine.ask(engine.admit(request))))
    alone, drafted = texts
    assert drafted.tokens == alone.tokens
    assert drafted.speculation.accepted > 40
