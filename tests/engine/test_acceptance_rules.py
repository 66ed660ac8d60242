"""Acceptance rules other than exact replay, on a pair that often disagrees.

That they keep the distributions they claim is tested in `test_distributions`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from edgespec.engine.prices import Prices
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES, Draws
from edgespec.rules.sampling import Sampler, SamplingParams
from engine_cases import N_VOCAB, PROMPT, counting, generate
from fake_model import FakeModel, blend, random_language
from one_tree import ROOT, OneTree

LANGUAGE = random_language(3, N_VOCAB)
OTHER = blend(LANGUAGE, random_language(4, N_VOCAB), 0.4)
OTHERS = [name for name in ACCEPTANCE_RULES if name != "exact-replay"]


DRAWING = [name for name, rule in ACCEPTANCE_RULES.items() if rule.growth is not None]
WARM = SamplingParams(temperature=1.0, seed=5)


def pair() -> tuple[FakeModel, FakeModel]:
    return FakeModel(LANGUAGE, N_VOCAB), FakeModel(OTHER, N_VOCAB)


@pytest.mark.costly
@pytest.mark.parametrize("rule", OTHERS)
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_is_the_targets_own(rule: str, penalty: float) -> None:
    sampling = SamplingParams(repeat_penalty=penalty)
    drafted = generate(*pair(), sampling=sampling, acceptance=rule, max_tokens=60)
    assert drafted.tokens == generate(pair()[0], sampling=sampling, max_tokens=60).tokens
    assert drafted.speculation.accepted > 10


@pytest.mark.costly
@pytest.mark.parametrize("rule", OTHERS)
def test_a_seed_gives_the_same_text_again(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings under which trees are the same, also where steps take another time; rules that heed
    the clock grow others each time."""
    settings: dict[str, Any] = {"sampling": WARM, "acceptance": rule, "fallback": "full"}
    one = generate(*pair(), **settings)
    monkeypatch.setattr(Prices, "see_round", lambda its, _: setattr(its, "node_share", 0.9))
    assert one.tokens == generate(*pair(), **settings).tokens


@pytest.mark.costly
@pytest.mark.parametrize("rule", OTHERS)
@pytest.mark.parametrize("fallback", ["marginal", "fixed", "llmcad"])
def test_a_text_ends_where_it_should(rule: str, fallback: str) -> None:
    for max_tokens in (1, 2, 7, 20):
        drafted = generate(
            *pair(), sampling=WARM, acceptance=rule, fallback=fallback, max_tokens=max_tokens
        )
        assert len(drafted.tokens) == max_tokens


@pytest.mark.parametrize("rule", OTHERS)
def test_a_draft_that_is_always_right_is_believed(rule: str) -> None:
    drafted = generate(
        counting(), counting(), sampling=WARM, acceptance=rule, fallback="full", draft_max=8
    )
    assert drafted.speculation.tokens_per_pass > 6


@pytest.mark.parametrize("rule", DRAWING)
def test_all_that_was_drawn_is_verified(rule: str) -> None:
    """A guess that is left out for what it is was not drawn from q."""
    drafted = generate(*pair(), sampling=WARM, acceptance=rule, fallback="full", draft_max=12)
    assert drafted.speculation.verified == drafted.speculation.drafted > 0
    assert drafted.speculation.provisional_drafted == 0


@pytest.mark.parametrize("rule", DRAWING)
def test_a_pass_has_room_for_all_that_was_drawn(rule: str) -> None:
    target = FakeModel(LANGUAGE, N_VOCAB, max_nodes=9, max_branches=3)
    generate(target, pair()[1], sampling=WARM, acceptance=rule, fallback="full", max_tokens=60)
    assert 4 < max(target.evaluations) <= 9


@pytest.mark.parametrize("rule", DRAWING)
def test_the_end_of_the_context_ends_the_text(rule: str) -> None:
    target, draft = FakeModel(LANGUAGE, N_VOCAB, n_ctx=30), FakeModel(OTHER, N_VOCAB, n_ctx=20)
    drafted = generate(target, draft, sampling=WARM, acceptance=rule, max_tokens=None)
    assert len(PROMPT) + len(drafted.tokens) == 31
    assert drafted.finish_reason == "context"


# What single rules do


def row(*probabilities: float) -> np.ndarray:
    return np.log(np.array([*probabilities, 1 - sum(probabilities)], np.float32))


def picked(rule: str, token: int, p: np.ndarray, sampler: Sampler) -> int:
    """The token after a root for which the draft drew `token`."""
    tree = OneTree(0)
    child = tree.add(ROOT, token, 0.5)
    draws = {int(tree.key[ROOT]): Draws(np.arange(3), np.array([0.2, 0.2, 0.6]), (token,))}
    return ACCEPTANCE_RULES[rule].pick(tree, ROOT, {ROOT: p, child: p}, sampler, draws)


def test_a_typical_guess_is_taken_whatever_the_draw() -> None:
    sampler, p = Sampler(SamplingParams(temperature=1.0)), row(0.6, 0.1)
    assert picked("typical", 1, p, sampler) == 1


def test_no_lenient_token_comes_more_often_than_p_over_l() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0))
    p = row(0.5, 0.4)  # 0.1 is left for token 2, which the draft gives 0.6
    counts = Counter(
        picked("lenience", guess, p, sampler)
        for guess in np.random.default_rng(0).choice(3, 4000, p=[0.2, 0.2, 0.6]).tolist()
    )
    assert 1.5 * counts[2] > 0.1 * 4000 and counts[2] <= 1.05 * 0.1 / 0.3 * 4000


def test_looking_takes_nothing() -> None:
    """Whatever a rule looks at, the text that the target draws stays the seed's."""
    params = SamplingParams(temperature=1.0, seed=1, repeat_penalty=1.5)
    logits = LANGUAGE(tuple(PROMPT))
    looking, plain = Sampler(params), Sampler(params)
    for _ in range(5):
        looking.distribution(logits)
        looking.uniform()
        token = looking.draw(logits)
        looking.accept(token, logits)
        assert token == plain.pick(logits)
