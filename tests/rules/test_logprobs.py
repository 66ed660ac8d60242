"""Log probabilities of texts are kept whole by some who ask for them: they are small."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgespec.rules.filters import token_logprobs

LOGITS = np.random.default_rng(0).standard_normal(500).astype(np.float32)


def test_the_best_come_first_and_are_the_softmax() -> None:
    expected = np.log(np.exp(LOGITS) / np.exp(LOGITS).sum())
    found = token_logprobs(LOGITS, 7, 100)
    tokens, values = zip(*found.top, strict=True)
    assert tokens == tuple(np.argsort(-LOGITS)[:100])
    assert values == pytest.approx(expected[list(tokens)], abs=1e-6)
    assert found.logprob == pytest.approx(expected[7], abs=1e-6)
    assert token_logprobs(LOGITS, 7, 0).top == ()


def test_a_hundred_of_them_take_less_than_two_kilobytes() -> None:
    """Tuples took eleven: 45 MB for a text of 4,000 tokens, which no plan knew."""
    token_logprobs(LOGITS, 7, 100)
    tracemalloc.start()
    kept = [token_logprobs(LOGITS, token, 100) for token in range(200)]
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert nbytes / len(kept) < 2_000
