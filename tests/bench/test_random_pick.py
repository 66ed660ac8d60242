"""The sampler of libraries in a bench, on a distribution of known probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.bench.child import RandomPick
from edgespec.settings.config import SamplingParams

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def test_tokens_are_drawn_with_their_probabilities():
    pick = RandomPick(SamplingParams(temperature=1.0, top_k=3))
    drawn = np.bincount([pick(LOGITS, [0]) for _ in range(2000)], minlength=4) / 2000
    assert drawn == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0], abs=0.05)


def test_penalties_count_the_latest_tokens():
    pick = RandomPick(SamplingParams(temperature=1.0, presence_penalty=50, repeat_last_n=2))
    assert {pick(LOGITS, [2, 3, 0, 1]) for _ in range(200)} == {2, 3}
