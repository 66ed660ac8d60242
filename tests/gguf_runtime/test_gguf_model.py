"""The GGUF runtime keeps the port's contract, resident and paged, and pages without a trace."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import WeightReadError
from edgespec.memory.budget import LOADING, MIB, plan_memory
from edgespec.memory.needs import TREE_SIZES
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.options import GgufOptions
from one_tree import ROOT, OneTree, line
from paging_contract import PagingContract, load_either, load_paged, one_by_one
from port_calls import evaluate, prefill
from port_contract import TEXT, PortContract
from port_models import model_request
from slots_contract import SlotsContract

PAIR = embedded_pair()
N_CTX = 256
KV_BYTES_PER_CELL = 3072
"""Bytes of the embedded target's keys and values, of all layers in half precision."""


def request(path: Path, n_slots: int = 1) -> ModelRequest:
    return model_request(
        path,
        ctx_size=N_CTX,
        max_nodes=17,
        max_branches=17,
        n_threads=2,
        options=GgufOptions(flash_attn="on"),
        batch_size=32,
        n_slots=n_slots,
    )


def open_resident(path: Path, n_slots: int = 1) -> LanguageModel:
    return load_either(runtime.prepare(request(path, n_slots)))


def open_paged(path: Path, share: float = 0.5, n_slots: int = 1) -> GgufModel:
    return load_paged(runtime.prepare(request(path, n_slots)), share)


class TestResidentDraftKeepsTheContract(PortContract):
    atol = 0.2

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: open_resident(PAIR.draft)


@pytest.mark.slow
class TestPagedTargetKeepsTheContract(PortContract):
    atol = 0.2

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: open_paged(PAIR.target)


class TestSlotsOfATarget(SlotsContract):
    atol = 0.2

    @pytest.fixture(params=[open_resident, pytest.param(open_paged, marks=pytest.mark.slow)])
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        return lambda: request.param(PAIR.target, n_slots=3)


@pytest.fixture
def paged() -> Iterator[GgufModel]:
    with closing(open_paged(PAIR.target)) as model:
        yield model


class TestPagedTargetKeepsThePagingContract(PagingContract):
    """The paging contract with the embedded target."""


def reference_logits(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """llama.cpp's own logits after every token, fed one by one: float32 [tokens, n_vocab]."""
    model, _ = loading.load_mapped(path)
    shape = contexts.ContextShape(
        n_ctx=N_CTX, n_batch=32, n_outputs=1, n_branches=1, n_threads=1, flash_attn="on"
    )
    stop = AbortFlag()  # llama.cpp keeps its address
    context = contexts.new_context(model, shape, None, stop)
    rows = []
    for token in tokens:
        batch = lib.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
        assert lib.llama_decode(context, batch) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits(context), (model.n_vocab,))
        rows.append(logits.copy())
    lib.llama_free(context)
    model.close()
    return np.stack(rows)


def test_paged_logits_equal_llama_cpp_bit_for_bit(paged: GgufModel) -> None:
    tokens = paged.vocabulary.encode(TEXT)[:16]
    assert np.array_equal(one_by_one(paged, tokens), reference_logits(PAIR.target, tokens))


def test_logits_beside_and_after_rejected_guesses_equal_llama_cpp_bit_for_bit(
    paged: GgufModel,
) -> None:
    """Cells of committed tokens once stood where rejected guesses had been: the order of sums
    differed, and with it the last bits."""
    tokens = paged.vocabulary.encode(TEXT)[:16]
    rows = []
    for begin in range(0, 16, 4):
        tree = OneTree(tokens[begin])
        nodes, end = [ROOT], ROOT
        for token in tokens[begin + 1 : begin + 4]:
            likelier = tree.add(end, (token + 1) % 4096, 0.6)
            nodes += [likelier, tree.add(likelier, 7, 0.9)]
            end = tree.add(end, token, 0.3)
            nodes.append(end)
        path = tree.path(end)
        logits = evaluate(paged, tree, nodes)
        rows += [logits[nodes.index(node)] for node in path]
        paged.commit(tree, path)
    assert np.array_equal(np.stack(rows), reference_logits(PAIR.target, tokens))


@pytest.mark.parametrize("n_nodes", [1 + EngineSettings().draft_max, TREE_SIZES[0]])
def test_the_largest_tree_by_default_has_the_logits_of_token_by_token(n_nodes: int) -> None:
    wanted = dataclasses.replace(request(PAIR.target), max_nodes=n_nodes)
    model = load_either(runtime.prepare(wanted))
    tokens = model.vocabulary.encode(20 * TEXT)[:n_nodes]
    logits = evaluate(model, *line(tokens))
    model.truncate(0)
    assert np.array_equal(logits, one_by_one(model, tokens))
    model.close()


def test_a_pass_reads_what_is_not_pinned_and_no_more(paged: GgufModel) -> None:
    tokens = paged.vocabulary.encode(TEXT)[:16]
    one_by_one(paged, tokens)
    stats = paged.paging()
    assert stats.passes == 16
    assert stats.pinned_bytes > 0
    per_pass = stats.bytes_read / stats.passes
    # whole blocks instead of bytes, and what was read ahead for a pass that never came
    assert stats.streamed_bytes <= per_pass <= 1.15 * stats.streamed_bytes


def test_after_a_pass_every_tensor_points_into_the_mapping_again(paged: GgufModel) -> None:
    one_by_one(paged, paged.vocabulary.encode(TEXT)[:2])
    weights = paged._weights
    for group, swaps in zip(weights._streamed, weights._swaps, strict=True):
        assert group.weights
        for weight, _ in swaps:
            assert weight.pointer.value == weights._mapped[weight.address]


def test_weights_that_nobody_swapped_are_read_from_the_mapping(paged: GgufModel) -> None:
    """A missed swap is slow and never wrong: without callbacks the logits stay the same."""
    tokens = paged.vocabulary.encode(TEXT)[:4]
    weights = paged._weights
    weights._segment_of = {}
    weights._stop_after = frozenset()
    weights._last_of = {}
    assert np.array_equal(one_by_one(paged, tokens), reference_logits(PAIR.target, tokens))


def gone(index: int) -> None:
    raise WeightReadError("the file was cut short")


def test_a_pass_that_is_given_up_reads_no_mapping(
    paged: GgufModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp computes a node before it looks whether to stop: of a file that had become shorter
    it then read what was no longer there, and the process was killed."""
    weights, pointers = paged._weights, set[int]()
    end_pass = weights.end_pass

    def watched() -> None:
        swaps = [swap for index in weights._parked for swap in weights._swaps[index]]
        pointers.update(weight.pointer.value for weight, _ in swaps)
        end_pass()

    monkeypatch.setattr(weights, "end_pass", watched)
    monkeypatch.setattr(weights.pager, "acquire", gone)
    with pytest.raises(WeightReadError):
        evaluate(paged, OneTree(5), [ROOT])
    assert pointers == {weights.pager.ring_address}


def test_after_a_pass_that_was_given_up_weights_point_to_the_file_again(
    paged: GgufModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that still points into the ring would be computed with other data."""
    weights = paged._weights
    swaps = [weight for swaps in weights._swaps for weight, _ in swaps]
    before = [weight.pointer.value for weight in swaps]
    with monkeypatch.context() as patch:
        patch.setattr(weights.pager, "acquire", gone)
        with pytest.raises(WeightReadError):
            evaluate(paged, OneTree(5), [ROOT])
    assert [weight.pointer.value for weight in swaps] == before
    assert not weights._parked
    tokens = paged.vocabulary.encode(TEXT)[:3]
    assert np.array_equal(one_by_one(paged, tokens), reference_logits(PAIR.target, tokens))


def test_fewer_nodes_take_less_and_are_loaded_when_they_are_planned() -> None:
    choosing = dataclasses.replace(request(PAIR.target), max_nodes=33, fewer_nodes=(17, 9))
    with closing(runtime.prepare(choosing)) as prepared:
        needs = prepared.needs()
        assert [batch.max_nodes for batch in needs.batches] == [33, 17, 9]
        taken = [batch.nbytes for batch in needs.batches]
        assert taken == sorted(taken, reverse=True)
        whole = [row for row in needs.resident or () if row.what != LOADING]
        plan = plan_memory(1 << 40, (*needs.common_rows(2), *whole), needs.cuts, ())
        with closing(prepared.load(dataclasses.replace(plan, batches={"target": 2}))) as model:
            assert (model.info.max_nodes, model.info.max_branches) == (9, 9)


def test_no_cells_are_reserved_beyond_the_context() -> None:
    """A tree does not grow past the context, and more cells change the text of some models."""
    with closing(runtime.prepare(request(PAIR.target))) as prepared:
        (kv_row,) = prepared.needs().fixed
        model = prepared.load(None)
    cells = lib.llama_n_ctx(model._context)
    model.close()
    assert cells == N_CTX
    assert kv_row.nbytes == N_CTX * KV_BYTES_PER_CELL


def test_a_tree_may_fill_the_context_to_its_last_cell() -> None:
    model = open_resident(PAIR.target)
    tokens = model.vocabulary.encode(40 * TEXT)[:N_CTX]
    prefill(model, tokens[:-8])
    tree = OneTree(tokens[-8])
    nodes = [ROOT, *(tree.add(ROOT, token, 0.1) for token in range(20, 27))]
    assert np.isfinite(evaluate(model, tree, nodes)).all()
    model.commit(tree, [ROOT])
    model.close()


@pytest.mark.slow
def test_closing_gives_the_memory_back() -> None:
    """glibc kept the freed KV buffers of every session, and the next plan found them in use.

    One arena: of each further one, glibc keeps what was freed at its end, whoever freed it.
    """
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, str(PAIR.target), str(PAIR.draft)],
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    after = [int(line) for line in done.stdout.split()]
    assert after[-1] - after[0] < 12 * MIB


SESSIONS = """
import sys
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.memory.process import process_rss_bytes

settings = LoadSettings(model=sys.argv[1], draft=sys.argv[2], ctx_size=1024, cache_type_k="f32")
for _ in range(4):
    with session.load(settings) as running:
        running.generate("def f(x):", max_tokens=4)
    print(process_rss_bytes())
"""


def test_a_head_that_is_the_embedding_table_too_is_streamed_last() -> None:
    """It was read first, because its rows are looked up first, and then again when it was due."""
    with closing(open_paged(PAIR.target, share=0.0)) as model:
        assert model._weights._streamed[-1].segment.name == "token_embd.weight"
