"""Acceptance rules that claim the target's distribution have it: chi-squared over 10,000 texts.

A rule that is wrong by one term does not pass: each is broken here, and found out by 3,000 texts.
So is an engine whose guesses are no draws, by 1,000.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES, AcceptanceRule, Draws, Growth, drawn
from edgespec.rules.filters import Logits
from edgespec.rules.sampling import Sampler, SamplingParams, distribution
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from fake_model import FakeModel, Language, blend, random_language
from one_tree import ROOT, OneTree

N_TEXTS, N_BROKEN, N_OF_ENGINE = 10_000, 3_000, 1_000
N_VOCAB = 6
PROMPT = (1, 2)
TARGET = random_language(3, N_VOCAB, sharpness=1.2)
DRAFT = blend(TARGET, random_language(4, N_VOCAB, sharpness=1.5), 0.9)
LINES = ("rejection",)
TREES = ("specinfer", "sequoia")
SETTINGS = [
    pytest.param({"temperature": 1.0}, id="T=1", marks=pytest.mark.slow),
    pytest.param({"temperature": 0.6, "top_k": 4}, id="T=0.6 top-k"),
    pytest.param({"temperature": 1.0, "top_p": 0.8}, id="T=1 top-p", marks=pytest.mark.slow),
]


Rows = dict[int, np.ndarray]
Drawn = tuple[OneTree, Rows, dict[int, Draws]]


class CachingSampler(Sampler):
    """Keeps the distributions of the few logits there are, and uses no noise twice."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self.known: dict[bytes, Any] = {}

    def distribution(self, logits: Logits) -> Any:
        key = logits.tobytes()
        if key not in self.known:
            self.known[key] = super().distribution(logits)
        return self.known[key]

    def draw(self, logits: Logits) -> int:
        self.n_accepted += 1
        return super().draw(logits)


def surprise(counts: Counter[tuple[int, ...]], n_tokens: int, params: SamplingParams) -> float:
    """Standard deviations by which chi-squared exceeds what the target's distribution gives
    (Wilson and Hilferty, 1931). Rare texts are counted together."""
    total, rare_count, rare, chi_squared, cells = counts.total(), 0, 0.0, 0.0, -1
    for text in itertools.product(range(N_VOCAB), repeat=n_tokens):
        chance, context = 1.0, PROMPT
        for token in text:
            tokens, p = distribution(TARGET(context), params)
            chance *= dict(zip(tokens.tolist(), p.tolist(), strict=True)).get(token, 0.0)
            context = (*context, token)
        expected = total * chance
        if expected < 5:
            rare, rare_count = rare + expected, rare_count + counts[text]
            continue
        chi_squared += (counts[text] - expected) ** 2 / expected
        cells += 1
    if rare > 0:
        chi_squared += (rare_count - rare) ** 2 / rare
        cells += 1
    elif rare_count:
        return math.inf
    spread = 2 / (9 * cells)
    return float(((chi_squared / cells) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def guesses_of(
    growth: Growth, params: SamplingParams, random: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Draws of a line of three guesses, or of a tree: a node's first draw has further draws below
    it."""
    guesses: list[tuple[int, ...]] = []
    context = PROMPT
    for _ in range(3 if growth.width == 1 else 2):
        guesses.append(tuple(growth.draw(*probabilities(DRAFT, context, params), random)))
        context = (*context, guesses[-1][0])
    return tuple(guesses)


def tree_of(guesses: Sequence[tuple[int, ...]], params: SamplingParams) -> Drawn:
    """The tree of these guesses, the target's logits after its nodes, and the draws."""
    tree, node, contexts = OneTree(PROMPT[-1], 16), ROOT, {ROOT: PROMPT}
    drawn_at: dict[int, Draws] = {}
    for draws in guesses:
        drawn_at[int(tree.key[node])] = Draws(*probabilities(DRAFT, contexts[node], params), draws)
        for guess in dict.fromkeys(draws):
            contexts[tree.add(node, guess, 0.5)] = (*contexts[node], guess)
        below = tree.child(node, draws[0])
        assert below is not None
        node = below
    return tree, {node: TARGET(context) for node, context in contexts.items()}, drawn_at


KNOWN: dict[Any, Any] = {}


def probabilities(language: Language, context: tuple[int, ...], params: SamplingParams) -> Any:
    key = language, context, params.temperature, params.top_k, params.top_p
    if key not in KNOWN:
        KNOWN[key] = distribution(language(context), params)
    return KNOWN[key]


def sampled(rule: AcceptanceRule, params: SamplingParams, n_texts: int) -> Counter[tuple[int, ...]]:
    """Beginnings of texts of the rule: two tokens of trees, three of lines. What the rule leaves
    open is drawn from the target's distribution."""
    assert rule.growth is not None
    growth = rule.growth._replace(width=min(3, rule.growth.width))
    n_tokens = 3 if growth.width == 1 else 2
    sampler, random = CachingSampler(params), np.random.default_rng(7)
    counts: Counter[tuple[int, ...]] = Counter()
    trees: dict[Any, Drawn] = {}
    for _ in range(n_texts):
        guesses = guesses_of(growth, params, random)
        if guesses not in trees:
            trees[guesses] = tree_of(guesses, params)
        text = (*PROMPT, *picks(rule, trees[guesses], sampler))
        while len(text) < len(PROMPT) + n_tokens:
            tokens, p = probabilities(TARGET, text, params)
            text = (*text, int(tokens[drawn(p, sampler)]))
        counts[text[len(PROMPT) :][:n_tokens]] += 1
    return counts


def picks(rule: AcceptanceRule, drawn_tree: Drawn, sampler: Sampler) -> Iterator[int]:
    tree, after, draws = drawn_tree
    node: int | None = ROOT
    while node in after:
        yield (token := rule.pick(tree, node, after, sampler, draws))
        node = tree.child(node, token)


def how_wrong(rule: AcceptanceRule, n_texts: int, **settings: Any) -> float:
    params = SamplingParams(**settings)
    is_line = rule.growth is not None and rule.growth.width == 1
    return surprise(sampled(rule, params, n_texts), 3 if is_line else 2, params)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", [*LINES, *TREES])
def test_a_rule_keeps_the_distribution_that_it_claims(name: str, settings: dict[str, Any]) -> None:
    assert how_wrong(ACCEPTANCE_RULES[name], N_TEXTS, **settings) < 3.3


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", [*LINES, *(pytest.param(name, marks=pytest.mark.slow) for name in TREES)]
)
def test_a_rule_that_is_wrong_by_one_term_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The residual: what is drawn where a guess is refused."""
    monkeypatch.setattr("edgespec.rules.acceptance_rules.leftover", lambda p, q: p)
    assert how_wrong(ACCEPTANCE_RULES[name], N_BROKEN, temperature=1.0) > 6


def ranked(growth: Growth, tokens: Any, q: Any, random: Any) -> list[int]:
    """Today's guesses, the best ones, which are no draws from q."""
    best: list[int] = tokens[np.argsort(-q)[: growth.width]].tolist()
    return best


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rejection", "specinfer"])
def test_guesses_that_were_ranked_are_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "draw", ranked)
    assert how_wrong(ACCEPTANCE_RULES[name], N_BROKEN, temperature=1.0) > 6


def engines_surprise(name: str) -> float:
    """Surprise at the texts of an engine, whatever decides where its trees grow, how many guesses
    are drawn and how far it goes."""
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=n) for n in range(N_OF_ENGINE)]
    settings = EngineSettings(fallback="full", step_aside=False, draft_max=6)
    counts: Counter[tuple[int, ...]] = Counter()
    rule = ACCEPTANCE_RULES[name]
    with Engine(model(TARGET), model(DRAFT), settings, acceptance=rule) as engine:
        for sampling in params:
            counts[finish(engine.generate(PROMPT, sampling, max_tokens=3)).tokens] += 1
    return surprise(counts, 3, params[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINES, *TREES])
def test_the_engine_keeps_it_too(name: str) -> None:
    assert engines_surprise(name) < 3.3


@pytest.mark.slow
def test_an_engine_that_ranks_its_guesses_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "draw", ranked)
    assert engines_surprise("rejection") > 6


def model(language: Language) -> FakeModel:
    return FakeModel(language, N_VOCAB)
