"""A pass of several rows has the logits of one row a pass, to the last bit, also where weights are
not quantised: ggml's kernels for one row of them and for several sum up in different orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_gguf_types import quantised

from edgespec.ports import LanguageModel
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import loading
from one_tree import line
from paging_contract import load_either, one_by_one
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import Species

MOST_ROWS = 16
PROMPT, TEXT = [10, 20, 30, 40, 50], list(range(60, 60 + 3 * MOST_ROWS, 3))
SPECIES = [
    *(Species(name) for name in ("qwen35", "lfm2")),
    *(Species(name, experts=True) for name in ("qwen35moe", "lfm2moe", "qwen3moe", "gpt-oss")),
]


def opened(path: Path, is_paged: bool, n_threads: int = 1) -> LanguageModel:
    request = model_request(path, max_nodes=MOST_ROWS, n_threads=n_threads, batch_size=64)
    return load_either(runtime.prepare(request), is_paged)


def differing_sizes(model: LanguageModel) -> list[int]:
    """Numbers of rows whose logits are not those of one row a pass."""
    prefill(model, PROMPT)
    alone = one_by_one(model, TEXT)
    found = []
    for n_rows in range(2, min(MOST_ROWS, model.info.max_nodes) + 1):
        model.truncate(0)
        prefill(model, PROMPT)
        together = evaluate(model, *line(TEXT[:n_rows]))
        if not np.array_equal(together, alone[:n_rows]):
            found.append(n_rows)
    model.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize("species", SPECIES, ids=[species.name for species in SPECIES])
def test_hybrids_and_mixtures(species: Species, is_paged: bool, tmp_path: Path) -> None:
    assert differing_sizes(opened(write_model(tmp_path / "m.gguf", species), is_paged)) == []


@pytest.mark.costly
@pytest.mark.parametrize(
    "species",
    [
        *(Species(name) for name in ("rwkv7", "gemma3")),
        *(
            pytest.param(species, marks=pytest.mark.slow)
            for species in (*SPECIES, *map(Species, ("mamba2", "falcon-h1", "jamba")))
        ),
    ],
    ids=lambda species: species.name,
)
def test_a_prompt_rounds_as_its_tokens_one_by_one(species: Species, tmp_path: Path) -> None:
    """A recurrent state may go on from what was generated, as the whole text read at once
    would have it."""
    model = opened(write_model(tmp_path / "m.gguf", species), is_paged=False)
    n_tokens = 60 if model.info.tree_capable else 66  # below and above a tile
    text = [20 + (7 * i * i + 5) % 300 for i in range(n_tokens)]
    alone = one_by_one(model, text)[-1]
    model.truncate(0)
    prefill(model, text[:-1])
    assert np.array_equal(evaluate(model, *line(text[-1:]))[0], alone)
    model.close()


@pytest.mark.costly
@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize(
    "kind", ["F16", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("F32", "BF16"))]
)
def test_models_without_quantised_weights(kind: str, is_paged: bool, tmp_path: Path) -> None:
    assert differing_sizes(opened(quantised(kind, tmp_path), is_paged, n_threads=2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize("kind", ["IQ4_NL", "Q8_0", "Q4_0"])
def test_quantised_weights_as_stored(
    kind: str, is_paged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IQ4_NL varies on x86-64, Q8_0 and Q4_0 on ARM."""
    monkeypatch.setattr(loading, "packs", lambda: False)
    assert differing_sizes(opened(quantised(kind, tmp_path), is_paged, n_threads=2)) == []
