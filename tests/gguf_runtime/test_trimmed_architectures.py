"""Trimmed copies of random models of every architecture rate tokens as the models do, unless the
graph needs more of a token than its embedding."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.errors import ModelError
from edgespec.files.cache_folder import lower_parts
from edgespec.memory import process
from edgespec.memory.budget import COPIES, MIB, MemoryPlan
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.values import NESTED
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, trim, write_trimmed
from edgespec_runtimes.enlarge.gguf.ways import can_be_trimmed, draft_sizes
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.measuring import ID_STEP_BYTES
from edgespec_runtimes.gguf.own_draft.trimmed import copy_sizes, trimmed_shape
from edgespec_runtimes.gguf.weights.segments import TRACED_SHAPE
from gguf_files import tiny_llama
from one_tree import OneTree
from port_calls import evaluate, prefill
from sentences import refuses
from zoo_files import write_model
from zoo_species import NO_TEXT, all_species
from zoo_trials import N_CTX, in_child, smallest_budget, try_way

LARGER = ", larger"
"""End of the name of a Gemma 4 whose layers look up nothing by a token."""
WRITING = {
    species.name: species
    for species in all_species()
    if species.architecture not in NO_TEXT and not architecture(species.architecture).purpose
}


def write_named(path: Path, name: str) -> Path:
    name, larger, _ = name.partition(LARGER)
    changes = {"embedding_length_per_layer_input": 0} if larger else {}
    if name == "gemma3n":
        changes = {"feed_forward_length": 1024}  # a smaller one may fit where it can be paged
    return write_model(path, WRITING[name], changes)


def logits_of(target: Path, draft: Path) -> np.ndarray:
    settings = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=64)
    with session.open_models(settings) as models:
        prefill(models.draft, [11, 12, 13, 14, 15])
        tree = OneTree(16, 4)
        tree.add(0, 17, confidence=0.5)
        return evaluate(models.draft, tree, [0, 1]).copy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("llama", "qwen2", "qwen2vl", "qwen3moe", "gemma3", "gemma3n", "gemma4", "granite"),
        *("gemma4, larger", "gemma4+experts", "gemma4+experts, larger"),
        *("glm4moe", "deepseek2", "gpt-oss", "phi3", "starcoder2", "cohere2moe", "mistral3"),
        *("qwen35", "qwen35moe", "lfm2", "lfm2moe", "nemotron_h_moe", "granitehybrid", "jamba"),
    ],
)
def test_it_rates_tokens_as_the_model_does(name: str, tmp_path: Path) -> None:
    target = write_named(tmp_path / "target.gguf", name)
    trimmed = tmp_path / "trimmed.gguf"
    write_trimmed(target, trimmed, range(3, 40))
    whole, some = logits_of(target, target), logits_of(target, trimmed)
    assert some.shape == (2, 37)
    np.testing.assert_allclose(some, whole[:, 3:40], rtol=1e-3, atol=1e-3)


FAMILIES = [
    *("qwen35", "qwen35moe", "gemma4, larger", "gemma4+experts", "gpt-oss", "lfm2", "lfm2moe"),
    *("glm4moe", "deepseek2", "nemotron_h_moe", "granitehybrid", "gemma4", "gemma3n"),
]
WHOLE = "whole"
"""Kind of a draft whose matrices are the target's."""


def write_pair(folder: Path, name: str, kind: str) -> tuple[Path, Path]:
    target, draft, tokens = folder / "target.gguf", folder / "draft.gguf", range(3, 400)

    def write() -> None:
        write_named(target, name)
        if kind == WHOLE:
            write_trimmed(target, draft, tokens)
        else:
            trim(target, draft, kind, tokens)

    assert in_child(write).how == "ok"
    return target, draft


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WHOLE, "nested", "Q4_0"])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_guesses_for_a_paged_model_of_which_it_shares_what_stays(
    name: str, kind: str, tmp_path: Path
) -> None:
    target, draft = write_pair(tmp_path, name, kind)
    alone, drafted = (try_way(target, one, True) for one in (None, draft))
    assert drafted.how == "ok", drafted.told
    assert drafted.value["drafted"]
    assert drafted.value["is_paged"] or kind in NESTED  # small ones fit where they can be paged
    assert drafted.value["tokens"] == alone.value["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_draft_has_copies_of_nothing_that_is_pinned(name: str, tmp_path: Path) -> None:
    """It has copies of experts, which a cache keeps or drops, and of what is no matrix product."""
    target, draft = write_pair(tmp_path, name, WHOLE)
    copies = copy_sizes(read_header(draft), read_header(target))
    found = in_child(lambda: what_is_pinned(target, draft))
    assert found.how == "ok", found.told
    pinned, nbytes = found.value
    assert copies.keys() & pinned
    assert nbytes == sum(copies[one] for one in copies.keys() - pinned)


def what_is_pinned(target: Path, draft: Path) -> tuple[list[str], int]:
    """Names of the weights that are pinned in the largest budget in which there is a pager, and
    bytes of the draft's copies."""
    settings = LoadSettings(model=target, draft=draft, ctx_size=N_CTX, threads=1)
    smallest_bytes, taken_bytes = smallest_budget(settings)
    process.footprint_bytes = lambda: taken_bytes
    paging_bytes = smallest_bytes + 2 * ID_STEP_BYTES  # of another preparation malloc tells more
    resident_bytes = paging_bytes + 2 * target.stat().st_size

    def plan(nbytes: int) -> MemoryPlan:
        return session.plan(settings.model_copy(update={"memory_budget": nbytes}))

    found = plan(paging_bytes)
    while resident_bytes - paging_bytes > MIB // 64:
        nbytes = (resident_bytes + paging_bytes) // 2
        if (larger := plan(nbytes)).paged:
            paging_bytes, found = nbytes, larger
        else:
            resident_bytes = nbytes
    names = [name for index in found.pinned for name in found.segments[index].weights]
    return names, sum(row.nbytes for row in found.rows if row.what == COPIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_graphs_take_embeddings_in_place_of_tokens(name: str, tmp_path: Path) -> None:
    """A newer llama.cpp may change a graph: then its line in the table of architectures changes."""
    path = tmp_path / "model.gguf"
    found = in_child(lambda: both_graphs(write_model(path, WRITING[name])))
    assert found.how == "ok", found.told
    if found.value is not None:
        tokens, embeddings = found.value
        adds = Trait.ADDS_TO_TOKENS in architecture(WRITING[name].architecture).traits
        assert (tokens != embeddings) == adds


def both_graphs(path: Path) -> tuple[list[Any], list[Any]] | None:
    """Operations, weights and factors of the graphs for a token and an embedding; None for a model
    of which no copy is made."""
    header = read_header(path)
    if not can_be_trimmed(header):
        return None
    model, _ = loading.load_mapped(path)
    one, other = (graph_of(model, header.tensors_by_name, given) for given in (0, model.n_embd))
    return one, other


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
@pytest.mark.parametrize("name", ["cogvlm", "graniteswitch", "deepseek4", "qwen4exp"])
def test_a_graph_that_needs_tokens_is_refused(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", WRITING[name])
    with refuses(ModelError):
        check_trimmable(path)


@pytest.mark.slow
def test_rows_of_no_large_blocks_are_quantised_in_small_ones(tmp_path: Path) -> None:
    target = tiny_llama(tied=False).write(tmp_path / "target.gguf")
    trim(target, tmp_path / "trimmed.gguf", "Q2_K", [*range(100)])
    header = read_header(tmp_path / "trimmed.gguf")
    assert trimmed_shape(header).tables[0].type.name == "Q4_0"
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


@pytest.mark.parametrize("kind", ["Q4_0", "Q2_K", "nested", "nested_least"])
def test_a_drafts_size_is_known_before_it_is_made(kind: str, tmp_path: Path) -> None:
    model = tiny_llama(embedding=256, heads=8, kv_heads=2, ffn=256, tied=False, kind="Q8_0")
    target, out = model.write(tmp_path / "target.gguf"), tmp_path / "draft.gguf"
    header = read_header(target)
    trim(target, out, kind, range(header.n_vocab))
    (sizes,) = (one for one in draft_sizes(header) if one.kind == kind)
    assert sizes.weight_bytes == read_header(out).weight_bytes
    lower = read_header(lower_parts(out)).weight_bytes if kind in NESTED else 0
    assert sizes.lower_bytes == lower
