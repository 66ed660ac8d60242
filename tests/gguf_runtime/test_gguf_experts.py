"""Mixtures of experts: only chosen experts are read, and logits are llama.cpp's, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_gguf_model import open_paged, open_resident, reference_logits

from edgespec.errors import WeightReadError
from edgespec.paging.eviction import LeastRecent
from edgespec.testing.paging_contract import PagingContract, one_by_one
from edgespec.tree import ROOT, TokenTree
from edgespec_runtimes.gguf.model import GgufModel
from expert_routing import misses, record
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
EXPERTS = {"expert_count": 16, "expert_used_count": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


def mixture(files: Path, name: str) -> Path:
    path = files / f"{name}.gguf"
    if not path.exists():
        write_model(path, Species(name, True), EXPERTS | GRAPHS[name])
    return path


@pytest.mark.parametrize("name", GRAPHS)
def test_a_token_reads_the_experts_that_it_chooses_and_no_others(name: str, files: Path) -> None:
    model = open_paged(mixture(files, name), share=0.5)
    try:
        one_by_one(model, [300, 301])
        experts = model.paging().experts
        assert experts is not None
        assert (experts.experts, experts.used) == (16, 4)
        n_chosen = 2 * experts.used * experts.layers
        assert experts.hits + experts.misses == n_chosen
        assert experts.misses < n_chosen
    finally:
        model.close()


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", GRAPHS)
def test_logits_equal_llama_cpp_bit_for_bit(name: str, share: float, files: Path) -> None:
    path = mixture(files, name)
    tokens = list(range(300, 316))
    model = open_paged(path, share)
    try:
        assert model.paging().experts is not None
        assert np.array_equal(one_by_one(model, tokens), reference_logits(path, tokens))
    finally:
        model.close()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_tree_has_the_logits_of_one_node_a_pass(name: str, files: Path) -> None:
    """Routers are in single precision: several rows at once would be rounded otherwise."""
    tokens = list(range(300, 316))
    model = open_paged(mixture(files, name), share=0.9)
    try:
        expected = one_by_one(model, tokens)
        model.truncate(0)
        tree, nodes = TokenTree(tokens[0]), [ROOT]
        for token in tokens[1:]:
            nodes.append(tree.add(nodes[-1], token, 0.5))
        found = model.evaluate(tree, nodes)
        assert model.last_report.passes == 1
        assert np.array_equal(found, expected)
    finally:
        model.close()


@pytest.mark.parametrize("name", ["deepseek2", "glm4moe", "granitemoe"])
def test_a_prompt_rounds_as_in_a_resident_model(name: str, files: Path) -> None:
    path, tokens = mixture(files, name), list(range(300, 316))
    found = []
    for model in (open_paged(path, share=0.9), open_resident(path)):
        model.prefill(tokens)
        found.append(model.evaluate(TokenTree(316), [ROOT]))
        model.close()
    assert np.array_equal(*found)


@pytest.fixture
def paged(files: Path) -> Iterator[GgufModel]:
    """With the least room: every token's experts are read anew."""
    model = open_paged(mixture(files, "qwen3moe"), share=0.0)
    yield model
    model.close()


class TestAMixtureKeepsThePagingContract(PagingContract):
    """Its dense weights streamed, its experts read one by one."""


def test_a_batch_that_may_choose_more_than_fits_is_computed_in_parts(paged: GgufModel) -> None:
    """With room for what one token chooses: a token at a time, and the same logits."""
    tokens = list(range(300, 310))
    expected = one_by_one(paged, tokens)
    paged.truncate(0)
    tree = TokenTree(tokens[0])
    nodes = [ROOT]
    for token in tokens[1:]:
        nodes.append(tree.add(nodes[-1], token, 0.5))
    assert np.array_equal(paged.evaluate(tree, nodes), expected)
    assert paged.last_report.passes == len(tokens)
    paged.truncate(0)
    paged.prefill(tokens[:-1])
    assert paged.last_report.passes == len(tokens) - 1
    assert np.array_equal(paged.evaluate(TokenTree(tokens[-1]), [ROOT])[0], expected[-1])


def test_a_prompt_reads_each_expert_once_a_batch(files: Path) -> None:
    """All of a layer's experts fit, whatever its tokens choose; the layers' do not."""
    model = open_paged(mixture(files, "qwen3moe"), share=0.25)
    try:
        tokens = [300 + i % 100 for i in range(96)]
        model.prefill(tokens)
        experts = model.paging().experts
        assert experts is not None
        assert model.last_report.passes == 3
        assert experts.misses <= 3 * experts.layers * experts.experts
    finally:
        model.close()


def test_a_missed_choice_reads_the_mapping(paged: GgufModel, files: Path) -> None:
    """Slow and never wrong: without stops at the choices the logits stay the same."""
    weights = paged._weights
    assert weights is not None
    assert weights.experts is not None
    weights.experts._layer_of = {}
    tokens = [300, 301, 302]
    expected = reference_logits(mixture(files, "qwen3moe"), tokens)
    assert np.array_equal(one_by_one(paged, tokens), expected)


def test_a_file_that_was_cut_short_is_told(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(mixture(files, "qwen3moe").read_bytes())
    model = open_paged(path, share=0.0)
    try:
        one_by_one(model, [300])
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(WeightReadError, match="cut short"):
            one_by_one(model, [301, 302])
    finally:
        model.close()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_no_more_experts_are_read_than_an_ideal_lru_reads(share: float, files: Path) -> None:
    """Token by token, on the routing that llama.cpp itself shows, with room for as many."""
    path = mixture(files, "qwen3moe")
    tokens = [300 + (7 * i) % 60 for i in range(40)]
    passes = record(path, tokens, n_new=0)
    model = open_paged(path, share)
    try:
        one_by_one(model, tokens)
        experts = model.paging().experts
    finally:
        model.close()
    assert experts is not None
    room_bytes = max(layer.room_bytes for layer in model._weights.experts.cache.layers)
    n_layers = len(passes[0])
    ideal = misses(
        passes, LeastRecent([experts.experts] * n_layers), experts.cache_bytes // room_bytes
    )
    assert experts.misses <= 1.05 * sum(ideal)
