"""The text depends neither on how a prompt is cut into batches nor on how many rows a pass has,
also where llama.cpp's attention has other kernels: 64 rows and more, 512 cells and more."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import even_parts, prompt_parts
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.kernels.invariant_kernels import MIN_TILED_BATCH
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.options import GgufOptions
from one_tree import ROOT, OneTree, line
from paging_contract import load_paged, one_by_one
from port_calls import evaluate, prefill
from port_contract import TEXT
from port_models import model_request

N_CTX = 1024
REQUEST = model_request(embedded_pair().target, ctx_size=N_CTX, max_nodes=80, batch_size=128)


def opened(**wanted: Any) -> LanguageModel:
    return load_paged(runtime.prepare(replace(REQUEST, **wanted)))


def text(model: LanguageModel, n_tokens: int) -> list[int]:
    tokens = model.vocabulary.encode(40 * TEXT)[:n_tokens]
    assert len(tokens) == n_tokens
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("n_tokens", [63, 65, 130, 300, 700])
def test_a_prompt_rounds_alike_whatever_the_batch(n_tokens: int) -> None:
    logits = []
    for batch_size in (128, 200, 256, 512):
        with closing(opened(batch_size=batch_size)) as model:
            tokens = text(model, n_tokens + 1)
            prefill(model, tokens[:-1])
            logits.append(evaluate(model, OneTree(tokens[-1]), [ROOT]))
    assert all(np.array_equal(logits[0], other) for other in logits)


@pytest.mark.slow
def test_a_tree_of_many_nodes_has_the_logits_of_one_node_a_pass() -> None:
    """They differed by tenths from 64 nodes on."""
    together, alone = logits_of_both(opened(), n_prompt=40, n_nodes=80)
    assert np.array_equal(together, alone)


@pytest.mark.costly
@pytest.mark.parametrize(("keys", "values"), [("f32", "f16"), ("f16", "f32")])
def test_a_tree_of_many_nodes_over_two_precisions_has_the_logits_of_one_node_a_pass(
    keys: str, values: str
) -> None:
    """llama.cpp rounds single precision to half first, so attention has all its kernels."""
    options = GgufOptions(cache_type_k=keys, cache_type_v=values)
    together, alone = logits_of_both(opened(options=options), n_prompt=40, n_nodes=66)
    assert np.array_equal(together, alone)


def test_a_tree_far_into_the_text_has_the_logits_of_one_node_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They differed by tenths from 512 cells on: a single row's cells were split over threads."""
    monkeypatch.setattr(loading, "SMALL_MODEL_BYTES", 0)
    together, alone = logits_of_both(opened(n_threads=2), n_prompt=300, n_nodes=4)
    assert np.array_equal(together, alone)


def logits_of_both(
    model: LanguageModel, n_prompt: int, n_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    tokens = text(model, n_prompt + n_nodes)
    with closing(model):
        prefill(model, tokens[:n_prompt])
        together = evaluate(model, *line(tokens[n_prompt:]))
        model.truncate(n_prompt)
        return together, one_by_one(model, tokens[n_prompt:])


@given(n_tokens=st.integers(1, 5000), most=st.integers(1, 600))
def test_even_parts_are_few_and_alike(n_tokens: int, most: int) -> None:
    parts = even_parts(n_tokens, most)
    assert sum(parts) == n_tokens
    assert len(parts) == -(-n_tokens // most)
    assert max(parts) - min(parts) <= 1


@given(n_tokens=st.integers(64, 5000), most=st.integers(MIN_TILED_BATCH, 600))
def test_no_part_is_smaller_than_a_tile_if_the_prompt_is_not(n_tokens: int, most: int) -> None:
    assert min(even_parts(n_tokens, most)) >= 64


@given(n_tokens=st.integers(1, 5000), most=st.integers(64, 600))
def test_parts_that_would_be_smaller_than_a_tile_begin_in_the_one_before(
    n_tokens: int, most: int
) -> None:
    parts = prompt_parts(n_tokens, most, tile=64)
    assert len(parts) == -(-n_tokens // most)
    assert all(min(64, n_tokens) <= len(part) <= most for part in parts)
    assert (parts[0].start, parts[-1].stop) == (0, n_tokens)
    assert all(later.start <= part.stop for part, later in pairwise(parts))
    if n_tokens < 64 or most >= MIN_TILED_BATCH:
        assert [len(part) for part in parts] == even_parts(n_tokens, most)
