"""Trimmed copies of random models of every supported architecture rate tokens as the models do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.enlarge.gguf.trim import trim, write_trimmed
from edgespec_runtimes.gguf.file.architectures import Trait, names_with
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.trimmed_header import trimmed_shape
from gguf_files import tiny_llama
from one_tree import OneTree
from port_calls import evaluate, prefill
from zoo_files import write_model
from zoo_species import Species

EXPERTS_ONLY = {"qwen3moe", "granitemoe", "deepseek"}


def logits_of(target: Path, draft: Path) -> np.ndarray:
    settings = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=64)
    with session.open_models(settings) as models:
        assert models.draft is not None
        prefill(models.draft, [11, 12, 13, 14, 15])
        tree = OneTree(16, 4)
        tree.add(0, 17, confidence=0.5)
        return evaluate(models.draft, tree, [0, 1]).copy()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", names_with(Trait.TRIMMABLE))
def test_it_rates_tokens_as_the_model_does(architecture: str, tmp_path: Path) -> None:
    species = Species(architecture, architecture in EXPERTS_ONLY)
    target = write_model(tmp_path / "target.gguf", species)
    trimmed = tmp_path / "trimmed.gguf"
    write_trimmed(target, trimmed, range(3, 40))
    whole, some = logits_of(target, target), logits_of(target, trimmed)
    assert some.shape == (2, 37)
    np.testing.assert_allclose(some, whole[:, 3:40], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_rows_of_no_large_blocks_are_quantised_in_small_ones(tmp_path: Path) -> None:
    target = tiny_llama(tied=False).write(tmp_path / "target.gguf")
    trim(target, tmp_path / "trimmed.gguf", "Q2_K", [*range(100)], 16 << 20)
    header = read_header(tmp_path / "trimmed.gguf")
    assert trimmed_shape(header).table.type.name == "Q4_0"
    assert header.tensors_by_name["token_embd.weight"].shape == (64, 100)
