"""Mixtures of experts: only chosen experts are read, and logits are llama.cpp's, bit for bit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from test_gguf_model import open_paged, open_resident, reference_logits

from edgespec.errors import Cancelled, WeightReadError
from edgespec_runtimes.gguf.model import GgufModel
from expert_routing import misses, record
from least_recent import LeastRecent
from one_tree import ROOT, OneTree, line
from paging_contract import PagingContract, one_by_one
from port_calls import evaluate, prefill
from zoo_files import write_model
from zoo_species import Species

GRAPHS = {
    "llama": {},
    "qwen3moe": {},
    "gpt-oss": {},
    "olmoe": {"attention.head_count_kv": 4},
    "deepseek2": {"expert_group_count": 4, "expert_group_used_count": 2, "expert_gating_func": 2},
    "glm4moe": {},
    "qwen2moe": {},
    "granitemoe": {},
    "dbrx": {},
    "ernie4_5-moe": {},
}
"""Architectures, and what their tiny model has otherwise than the zoo's: softmax and sigmoid
routing, groups of experts, biases, shared experts, first layers that are dense."""
FEW_GRAPHS = ("llama", "gpt-oss", "deepseek2")
"""Softmax, biases and groups."""
EXPERTS = {"expert_count": 16, "expert_used_count": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


def mixture(files: Path, name: str) -> Path:
    path = files / f"{name}.gguf"
    if not path.exists():
        write_model(path, Species(name, True), EXPERTS | GRAPHS[name])
    return path


MOST_EXPERTS = pytest.param(0.9, marks=pytest.mark.slow)
"""A share of experts that stay in memory; with the least room, more is computed otherwise."""


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_token_reads_the_experts_that_it_chooses_and_no_others(name: str, files: Path) -> None:
    with closing(open_paged(mixture(files, name), share=0.5)) as model:
        one_by_one(model, [300, 301])
        experts = model.paging().experts
        assert (experts.experts, experts.used) == (16, 4)
        n_chosen = 2 * experts.used * experts.layers
        assert experts.hits + experts.misses == n_chosen
        assert experts.misses < n_chosen


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW_GRAPHS else pytest.mark.slow) for name in GRAPHS],
)
def test_logits_equal_llama_cpp_bit_for_bit(name: str, share: float, files: Path) -> None:
    path = mixture(files, name)
    tokens = list(range(300, 316))
    with closing(open_paged(path, share)) as model:
        assert model.paging().experts is not None
        assert np.array_equal(one_by_one(model, tokens), reference_logits(path, tokens))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, MOST_EXPERTS])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_tree_has_the_logits_of_one_node_a_pass(name: str, share: float, files: Path) -> None:
    """Routers are in single precision: several rows at once would be rounded otherwise. With the
    least room, a layer's experts come in rounds."""
    tokens = list(range(300, 316))
    with closing(open_paged(mixture(files, name), share)) as model:
        expected = one_by_one(model, tokens)
        model.truncate(0)
        found = evaluate(model, *line(tokens))
        assert model.last_report.passes == 1
        assert np.array_equal(found, expected)


@pytest.mark.costly
@pytest.mark.parametrize("share", [0.0, MOST_EXPERTS])
@pytest.mark.parametrize("name", ["deepseek2", "glm4moe", "granitemoe"])
def test_a_prompt_rounds_as_in_a_resident_model(name: str, share: float, files: Path) -> None:
    path, tokens = mixture(files, name), list(range(300, 316))
    found = []
    for model in (open_paged(path, share), open_resident(path)):
        prefill(model, tokens)
        found.append(evaluate(model, OneTree(316), [ROOT]))
        model.close()
    assert np.array_equal(*found)


@pytest.fixture
def paged(files: Path) -> Iterator[GgufModel]:
    """A model with the least room: every token's experts are read anew."""
    with closing(open_paged(mixture(files, "qwen3moe"), share=0.0)) as model:
        yield model


@pytest.mark.slow
class TestAMixtureKeepsThePagingContract(PagingContract):
    """Its dense weights streamed, its experts read one by one."""


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_prompt_reads_each_expert_once_a_batch(share: float, files: Path) -> None:
    """All of a layer's experts fit, or come in rounds; those of all layers never fit."""
    with closing(open_paged(mixture(files, "qwen3moe"), share)) as model:
        tokens = [300 + i % 100 for i in range(96)]
        prefill(model, tokens)
        experts = model.paging().experts
        assert model.last_report.passes == 2  # each fills a tile of 64 rows
        assert experts.misses <= 2 * experts.layers * experts.experts
        layers = model._weights.experts.cache.layers
        assert experts.bytes_read <= 2 * sum(layer.n_experts * layer.room_bytes for layer in layers)


@pytest.mark.slow
def test_a_round_that_cannot_be_read_ends_the_pass_and_nothing_else(paged: GgufModel) -> None:
    tokens = list(range(300, 310))
    expected = one_by_one(paged, tokens)
    paged.truncate(0)
    cache = paged._weights.experts.cache
    good, n_read = cache._reads._reader.read, 0

    def unplugged(*arguments: object) -> int:
        nonlocal n_read
        n_read += 1
        if n_read == 40:
            raise WeightReadError("the cable was pulled")
        return good(*arguments)

    cache._reads._reader.read = unplugged
    with pytest.raises(WeightReadError):
        evaluate(paged, *line(tokens))
    assert np.array_equal(evaluate(paged, *line(tokens)), expected)


def test_a_round_that_waits_for_reads_can_be_cancelled(paged: GgufModel) -> None:
    tokens = list(range(300, 310))
    expected = one_by_one(paged, tokens)
    paged.truncate(0)
    cache = paged._weights.experts.cache
    good, released = cache._reads._reader.read, threading.Event()

    def hanging(*arguments: object) -> int:
        paged.cancel()
        released.wait(60)
        return good(*arguments)

    cache._reads._reader.read = hanging
    with pytest.raises(Cancelled):
        evaluate(paged, *line(tokens))
    released.set()
    cache._reads._reader.read = good
    assert np.array_equal(evaluate(paged, *line(tokens)), expected)


def test_a_missed_choice_reads_the_mapping(paged: GgufModel, files: Path) -> None:
    """Slow and never wrong: without stops at the choices the logits stay the same."""
    paged._weights.experts._layer_of = {}
    tokens = [300, 301, 302]
    expected = reference_logits(mixture(files, "qwen3moe"), tokens)
    assert np.array_equal(one_by_one(paged, tokens), expected)


def test_a_file_that_was_cut_short_is_told(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(mixture(files, "qwen3moe").read_bytes())
    with closing(open_paged(path, share=0.0)) as model:
        one_by_one(model, [300])
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(WeightReadError):
            one_by_one(model, [301, 302])


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0.1, marks=pytest.mark.slow), 0.3, 0.6])
def test_no_more_experts_are_read_than_an_ideal_lru_reads(share: float, files: Path) -> None:
    """Token by token, on the routing that llama.cpp itself shows, with room for as many."""
    path = mixture(files, "qwen3moe")
    tokens = [300 + (7 * i) % 60 for i in range(40)]
    passes = record(path, tokens, n_new=0)
    with closing(open_paged(path, share)) as model:
        one_by_one(model, tokens)
        experts = model.paging().experts
    room_bytes = max(layer.room_bytes for layer in model._weights.experts.cache.layers)
    n_layers = len(passes[0])
    ideal = misses(
        passes, LeastRecent([experts.experts] * n_layers), experts.cache_bytes // room_bytes
    )
    assert experts.misses <= 1.05 * sum(ideal)
