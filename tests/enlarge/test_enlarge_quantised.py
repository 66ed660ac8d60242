"""Models in another quantisation can be enlarged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.gguf.file.header import read_header
from gguf_files import tiny_llama
from reference import LlamaCpp, quantise

TOKENS = [5, 80, 2, 290, 41, 0, 7]
REPACKED = 0.01
"""Largest difference of two logits, as a share of their spread, where llama.cpp repacks the weights
of one of two models: activations a bit apart are now and then quantised one step apart."""


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of llama.cpp after each token, float32 [tokens, vocabulary]."""
    with LlamaCpp(path, 64) as model:
        return np.stack([model.decode([token]) for token in tokens])


OF_LARGE_BLOCKS = (
    "Q6_K",
    "Q5_K_M",
    "Q4_K_M",
    "IQ4_XS",
    "Q3_K_M",
    "IQ3_S",
    "Q2_K",
    "TQ2_0",
    "TQ1_0",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_0", *OF_LARGE_BLOCKS])
def test_a_quantised_model_can_be_enlarged_and_stays_the_same(tmp_path: Path, name: str):
    source = tiny_llama(embedding=256, heads=4, kv_heads=1, ffn=256).write(tmp_path / "m.gguf")
    stored, out = tmp_path / "stored.gguf", tmp_path / "big.gguf"
    quantise(source, stored, name)
    report = enlarge(stored, out, 48 * stored.stat().st_size)
    assert report.factor > 1
    kinds = {tensor.type.name for tensor in read_header(out).tensors}
    assert kinds == {tensor.type.name for tensor in read_header(stored).tensors}
    assert name.removesuffix("_M") in kinds
    expected, found = logits(stored, TOKENS), logits(out, TOKENS)
    assert np.abs(found - expected).max() <= REPACKED * np.ptp(expected, axis=1).mean()
