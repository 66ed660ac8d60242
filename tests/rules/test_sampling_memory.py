"""Everything that touches as many numbers as the vocabulary has stays within the plan's row for it,
per token of a flat distribution, which filters leave most of."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.rules.filters import token_logprobs
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.session.prepared_models import SAMPLING_BYTES_PER_TOKEN

N_VOCAB = 1 << 17
LOGITS = np.random.default_rng(0).normal(size=N_VOCAB).astype(np.float32)
WAYS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.001},
    {"temperature": 1.0, "top_k": N_VOCAB},
    {"temperature": 0.7, "repeat_penalty": 1.2},
    {"temperature": 1.0, "top_p": 0.99, "logit_bias": {7: -100.0}},
    {"repeat_penalty": 1.2},
]


class Half:
    """A constraint that allows every second token."""

    mask = np.arange(N_VOCAB) % 2 == 0

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        return self.mask


def bytes_per_token(work: Callable[[], object]) -> float:
    work()  # imports and caches
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / N_VOCAB


def sampler(**params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), prompt=(1, 2, 3))


@pytest.mark.parametrize("constraint", [None, Half()], ids=["free", "constrained"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_draw_stays_within_the_row(way: dict[str, Any], constraint: Any) -> None:
    drawing = Sampler(SamplingParams(**way), prompt=(1, 2, 3), constraint=constraint)
    assert bytes_per_token(lambda: drawing.draw(LOGITS)) <= SAMPLING_BYTES_PER_TOKEN


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_guess_by_logits_stays_within_the_row(way: dict[str, Any]) -> None:
    guessing = sampler(**way)
    used = bytes_per_token(lambda: guessing.foresee(LOGITS, 8, 1, (5,)))
    assert used <= SAMPLING_BYTES_PER_TOKEN


def test_log_probabilities_stay_within_the_row() -> None:
    assert bytes_per_token(lambda: token_logprobs(LOGITS, 3, 20)) <= SAMPLING_BYTES_PER_TOKEN
