"""Trimmed copies of random models of every architecture rate tokens as the models do, unless the
graph needs more of a token than its embedding."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.errors import ModelError
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.values import NESTED
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, nest, trim, write_trimmed
from edgespec_runtimes.enlarge.gguf.ways import can_be_trimmed
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.own_draft.trimmed import trimmed_shape
from edgespec_runtimes.gguf.weights.segments import TRACED_SHAPE
from gguf_files import tiny_llama
from one_tree import OneTree
from port_calls import evaluate, prefill
from sentences import refuses
from zoo_files import write_model
from zoo_species import NO_TEXT, all_species
from zoo_trials import in_child, try_way

NO_LAYERS = {"embedding_length_per_layer_input": 0}
"""Change of a Gemma 4 whose layers look up nothing by a token, as the larger ones."""
WRITING = {
    species.name: species
    for species in all_species()
    if species.architecture not in NO_TEXT and not architecture(species.architecture).purpose
}


def logits_of(target: Path, draft: Path) -> np.ndarray:
    settings = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=64)
    with session.open_models(settings) as models:
        assert models.draft is not None
        prefill(models.draft, [11, 12, 13, 14, 15])
        tree = OneTree(16, 4)
        tree.add(0, 17, confidence=0.5)
        return evaluate(models.draft, tree, [0, 1]).copy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("llama", "qwen2", "qwen2vl", "qwen3moe", "gemma3", "gemma4", "gemma4+experts", "granite"),
        *("glm4moe", "deepseek2", "gpt-oss", "phi3", "starcoder2", "cohere2moe", "mistral3"),
        *("qwen35", "qwen35moe", "lfm2", "lfm2moe", "nemotron_h_moe", "granitehybrid", "jamba"),
    ],
)
def test_it_rates_tokens_as_the_model_does(name: str, tmp_path: Path) -> None:
    changes = NO_LAYERS if name.startswith("gemma4") else None
    target = write_model(tmp_path / "target.gguf", WRITING[name], changes)
    trimmed = tmp_path / "trimmed.gguf"
    write_trimmed(target, trimmed, range(3, 40))
    whole, some = logits_of(target, target), logits_of(target, trimmed)
    assert some.shape == (2, 37)
    np.testing.assert_allclose(some, whole[:, 3:40], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nested", "Q4_0"])
@pytest.mark.parametrize(
    "name",
    [
        *("qwen35", "qwen35moe", "gemma4", "gemma4+experts", "gpt-oss", "lfm2", "lfm2moe"),
        *("glm4moe", "deepseek2", "nemotron_h_moe", "granitehybrid"),
    ],
)
def test_it_guesses_for_a_paged_model_of_which_it_shares_what_stays(
    name: str, kind: str, tmp_path: Path
) -> None:
    target = tmp_path / "target.gguf"
    changes = NO_LAYERS if name.startswith("gemma4") else None

    def write() -> None:
        write_model(target, WRITING[name], changes)
        tokens, out = range(3, 400), tmp_path / "draft.gguf"
        nest(target, out, kind, tokens) if kind in NESTED else trim(target, out, kind, tokens)

    assert in_child(write).how == "ok"
    alone, drafted = (try_way(target, draft, True) for draft in (None, tmp_path / "draft.gguf"))
    assert drafted.how == "ok", drafted.told
    assert drafted.value["drafted"]
    assert drafted.value["is_paged"] or kind in NESTED  # small ones fit where they can be paged
    assert drafted.value["tokens"] == alone.value["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_graphs_take_embeddings_in_place_of_tokens(name: str, tmp_path: Path) -> None:
    """A newer llama.cpp may change a graph: then its line in the table of architectures changes."""
    path = tmp_path / "model.gguf"
    changes = NO_LAYERS if name.startswith("gemma4") else None
    found = in_child(lambda: both_graphs(write_model(path, WRITING[name], changes)))
    if found.how == "ok" and found.value is not None:
        tokens, embeddings, scales = found.value
        assert tokens == embeddings
        is_scaled = Trait.SCALED in architecture(WRITING[name].architecture).traits
        width = read_header(path).embedding_length
        assert scales == ([[pytest.approx(width**0.5), 1.0]] if is_scaled else [])
    else:
        assert found.how == "ok", found.told


def both_graphs(path: Path) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Operations and weights of the graphs for a token and an embedding, and factors that differ;
    None for a model of which no copy is made."""
    header = read_header(path)
    if not can_be_trimmed(header):
        return None
    model, _ = loading.load_mapped(path)
    one, other = (graph_of(model, header.tensors_by_name, given) for given in (0, model.n_embd))
    factors = zip(one, other, strict=False)
    return (
        [node[:2] for node in one],
        [node[:2] for node in other],
        [(a[2], b[2]) for a, b in factors if a[2] != b[2]],
    )


def graph_of(model: loading.Model, names: Any, n_values: int) -> list[tuple[str, list[str], float]]:
    """Operation, weights and factor of each node, of a pass over an embedding of `n_values` or over
    a token."""
    nodes = []

    @lib.ggml_backend_sched_eval_callback
    def watch(node: int, ask: bool, _: Any) -> bool:
        tensor = abi.GgmlTensor.from_address(node)
        weights = []
        for source in tensor.src:
            address = source
            while address and (parent := abi.GgmlTensor.from_address(address).view_src):
                address = parent
            name = abi.name_of(address).split(b"\0")[0].decode() if address else ""
            weights += [name] * (name in names)
        op = abi.op_name(tensor.op)
        bits = ctypes.c_int32(tensor.op_params[0])
        factor = ctypes.c_float.from_buffer(bits).value if op == "SCALE" else 1.0
        nodes.append((op, weights, factor))
        return False

    stop = AbortFlag()
    stop.is_set = True
    context = contexts.new_context(model, TRACED_SHAPE, watch, stop)
    batch = lib.llama_batch_init(4, n_values, 1)  # positions for all sections of a rotation
    batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, 1
    for section in range(4):
        batch.pos[section] = 0
    if not n_values:
        batch.token[0] = 0
    lib.llama_decode(context, batch)
    lib.llama_free(context)
    return nodes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "cogvlm", "graniteswitch", "deepseek4"])
def test_a_graph_that_needs_tokens_is_refused(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", WRITING[name])
    with refuses(ModelError):
        check_trimmable(path)


@pytest.mark.slow
def test_rows_of_no_large_blocks_are_quantised_in_small_ones(tmp_path: Path) -> None:
    target = tiny_llama(tied=False).write(tmp_path / "target.gguf")
    trim(target, tmp_path / "trimmed.gguf", "Q2_K", [*range(100)])
    header = read_header(tmp_path / "trimmed.gguf")
    assert trimmed_shape(header).table.type.name == "Q4_0"
    assert header.tensors_by_name["token_embd.weight"].shape == (64, 100)


def test_what_makes_a_coarse_copy_better_is_finer(tmp_path: Path) -> None:
    """The choice is llama.cpp's quantiser's; norms stay as they are."""
    target = tiny_llama(embedding=256, heads=8, kv_heads=2, ffn=256, tied=False)
    trim(target.write(tmp_path / "target.gguf"), tmp_path / "draft.gguf", "Q2_K", range(100))
    tensors = read_header(tmp_path / "draft.gguf").tensors
    kinds = {tensor.name.split(".")[-2]: tensor.type.name for tensor in tensors}
    finer = {"token_embd": "Q3_K", "ffn_down": "Q3_K", "attn_output": "Q3_K", "attn_v": "Q4_K"}
    assert {part: kind for part, kind in kinds.items() if kind not in ("F32", "Q2_K")} == finer
    assert kinds["attn_norm"] == kinds["output_norm"] == "F32"
    assert kinds["attn_q"] == kinds["ffn_up"] == "Q2_K"
