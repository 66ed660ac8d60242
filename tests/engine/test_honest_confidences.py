"""Drafts that are sure by the wrong measure: what learning it costs, and what it brings."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Opinion
from engine_cases import GREEDY, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, Language

N_VOCAB = 40
N_TEXTS = 5
N_TOKENS = 300
LEARNING_ROUNDS = 10
SURELY = "draft sharpness precision"


class KnownShares(Mixer):
    """Is told a draft's temperature and learns nothing."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.load_state_dict({"draft sharpness": -math.log(temperature), SURELY: 1.0})

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        pass


@functools.cache
def draft_logits(seed: int, context: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng([seed, *context])
    return 3.0 * random.standard_normal(N_VOCAB)


@functools.cache
def target(seed: int) -> Language:
    """Its greedy text is a draw from softmax(draft logits): the Gumbel-max trick."""

    @functools.cache
    def logits(context: tuple[int, ...]) -> np.ndarray:
        noise = np.random.default_rng([seed, 1, *context]).gumbel(size=N_VOCAB)
        return (draft_logits(seed, context) + noise).astype(np.float32)

    return lambda context: logits(context[-8:])


def draft(seed: int, temperature: float) -> Language:
    """A draft whose logits are `temperature` times what they should be."""

    @functools.cache
    def logits(context: tuple[int, ...]) -> np.ndarray:
        return (temperature * draft_logits(seed, context)).astype(np.float32)

    return lambda context: logits(context[-8:])


@functools.cache
def tokens_per_pass(temperature: float, told: float | None = None) -> float:
    """After the first rounds of some texts, each begun without any knowledge but what is told; the
    draft alone guesses."""
    settings = EngineSettings(fallback="full", draft_max=16, step_aside=False, lookup=False)
    lengths: list[int] = []
    for seed in range(N_TEXTS):
        with Engine(
            FakeModel(target(seed), N_VOCAB, n_ctx=1024),
            FakeModel(draft(seed, temperature), N_VOCAB, n_ctx=1024),
            settings,
        ) as engine:
            if told is not None:
                tell(engine, told)
            result = finish(engine.generate([1, 2, 3, 4], GREEDY, N_TOKENS))
        lengths += result.speculation.accepted_lengths[LEARNING_ROUNDS:]
    return 1 + sum(lengths) / len(lengths)


def tell(engine: Engine, temperature: float) -> None:
    engine.mixer = KnownShares(temperature)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_what_is_learnt_in_ten_rounds_is_worth_what_the_truth_is(temperature: float) -> None:
    """Told the truth, these drafts are one and the same: one is far too sure, one far from sure."""
    assert tokens_per_pass(temperature) > 0.97 * tokens_per_pass(1.0, told=1.0)


@pytest.mark.slow
def test_an_untruth_would_cost_more() -> None:
    assert tokens_per_pass(4.0, told=0.7) < 0.97 * tokens_per_pass(1.0, told=1.0)
