"""Two rules of other papers, written here alone: what a rule needs is behind the seam.

Both accept guesses that exact replay would not, so neither is lossless by the draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import pytest

from edgespec.engine.acceptance import ACCEPTANCE_RULES, AcceptanceRule
from edgespec.engine.sampling import Logits, Sampler, SamplingParams, distribution
from edgespec.testing.fake_model import FakeModel, random_language
from edgespec.tree import ROOT, TokenTree
from engine_cases import N_VOCAB, PROMPT, generate

LANGUAGE = random_language(3, N_VOCAB)
OTHER = random_language(4, N_VOCAB)
N_SEEDS = 4000


class Typical:
    """Medusa's typical acceptance (Cai et al., arXiv 2401.10774, 3.3.1).

    A guess stands if p(x) > min(epsilon, delta * exp(-H(p))); of several the likeliest.
    """

    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False
    epsilon, delta = 0.09, 0.3

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        tokens, p = sampler.distribution(after[node])
        entropy = -float((p * np.log(p)).sum())
        chance = dict(zip(tokens.tolist(), p.tolist(), strict=True))
        typical = [
            (chance[token], -token)
            for child in tree.children(node)
            if child in after and (token := int(tree.token[child])) in chance
            if chance[token] > min(self.epsilon, self.delta * math.exp(-entropy))
        ]
        return -max(typical)[1] if typical else sampler.draw(after[node])


class Rejection:
    """SpecInfer's multi-step rejection sampling (Miao et al., arXiv 2305.09781, algorithm 2).

    Guesses that a drafter did not draw, but ranked, were certain to be offered: q = 1. One stands
    with its chance in what is left of p, and is taken out of p otherwise.
    """

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = False

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        tokens, p = sampler.distribution(after[node])
        left = dict(zip(tokens.tolist(), p.tolist(), strict=True))
        for child in tree.children(node):
            token = int(tree.token[child])
            if child not in after or token not in left:
                continue
            if sampler.uniform() * sum(left.values()) < left[token]:
                return token
            del left[token]
        rest = np.cumsum(list(left.values()))
        place = np.searchsorted(rest, sampler.uniform() * rest[-1], side="right")
        return list(left)[int(place)]


RULES: dict[str, Callable[[], AcceptanceRule]] = {rule.name: rule for rule in (Typical, Rejection)}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rule in RULES.items():
        monkeypatch.setitem(ACCEPTANCE_RULES, name, rule)


def pair() -> tuple[FakeModel, FakeModel]:
    return FakeModel(LANGUAGE, N_VOCAB), FakeModel(OTHER, N_VOCAB)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_the_targets_own(rule: str) -> None:
    """There is one token that may come."""
    target, draft = pair()
    assert generate(target, draft, acceptance=rule).tokens == generate(pair()[0]).tokens


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_not_lossless_is_told(rule: str) -> None:
    assert f"the acceptance rule {rule}" in generate(*pair(), acceptance=rule).notes[0]
    assert not generate(*pair()).notes
    assert not generate(pair()[0], acceptance=rule).notes


@pytest.mark.parametrize("rule", RULES)
def test_a_seed_gives_the_same_text_again(rule: str) -> None:
    """Where the trees are the same: what a rule that heeds the clock grows differs by moments."""
    warm = SamplingParams(temperature=1.0, seed=5)
    settings = {"sampling": warm, "acceptance": rule, "fallback": "full"}
    one, again = (generate(*pair(), **settings) for _ in range(2))
    assert one.tokens == again.tokens


def test_typical_guesses_stand_more_often_than_drawn_ones() -> None:
    warm = [SamplingParams(temperature=1.0, seed=seed) for seed in range(10)]
    accepted = {
        rule: sum(
            generate(*pair(), sampling=sampling, acceptance=rule).speculation.accepted
            for sampling in warm
        )
        for rule in ("typical", "exact-replay")
    }
    assert accepted["typical"] > accepted["exact-replay"]


def test_rejection_keeps_the_distribution_whatever_is_guessed() -> None:
    tree = TokenTree(PROMPT[-1])
    for token in (2, 7, 5):
        tree.add(ROOT, token, 0.3)
    rows = np.stack([LANGUAGE(tuple(PROMPT)), *(LANGUAGE((*PROMPT, t)) for t in (2, 7, 5))])
    counts = np.zeros(N_VOCAB)
    for seed in range(N_SEEDS):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        counts[Rejection().pick(tree, ROOT, dict(enumerate(rows)), sampler)] += 1
    tokens, p = distribution(rows[0], SamplingParams(temperature=1.0))
    expected = np.zeros(N_VOCAB)
    expected[tokens] = p
    spread = np.sqrt(expected * (1 - expected) / N_SEEDS)
    assert (np.abs(counts / N_SEEDS - expected) <= 4 * spread + 1e-3).all()


def test_looking_takes_nothing() -> None:
    """Whatever a rule looks at, the text that the target draws stays the seed's."""
    params = SamplingParams(temperature=1.0, seed=1, repeat_penalty=1.5)
    row = LANGUAGE(tuple(PROMPT))
    looking, plain = Sampler(params), Sampler(params)
    for _ in range(5):
        looking.distribution(row)
        looking.uniform()
        token = looking.draw(row)
        looking.accept(token, row)
        assert token == plain.pick(row)
