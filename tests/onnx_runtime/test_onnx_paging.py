"""A paged ONNX model reads what the plan says, computes the same, and survives its storage."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import WeightReadError
from edgespec.memory.budget import plan_memory
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.files.source_model import read_source
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.weights.paged import own_weights, small_weights
from one_tree import ROOT, OneTree
from onnx_files import DATA_FILE, write_llama
from onnx_models import open_paged, open_resident, request
from onnx_reference import WholeModel
from paging_contract import PagingContract, one_by_one
from port_calls import evaluate, prefill
from port_contract import TEXT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of some 160 KiB: whole blocks are then a small part."""
    path = tmp_path_factory.mktemp("models") / "model"
    write_llama(path, layers=6, ffn=128, vocab=512)
    return path


@pytest.fixture
def paged(folder: Path) -> Iterator[OnnxModel]:
    model = open_paged(folder)
    yield model
    model.close()


class TestPagedModelKeepsThePagingContract(PagingContract):
    """The paging contract on fp32 layers as Optimum exports them."""


def text(model: OnnxModel, n: int) -> list[int]:
    return model.vocabulary.encode(2 * TEXT)[:n]


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_paged_logits_equal_the_whole_models(kind: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path, dtype=kind)
    model = open_paged(tmp_path, share=0.0)
    tokens = text(model, 12)
    expected = WholeModel(path).decode_all(tokens)
    atol = 1e-4 if kind == "float32" else 0.02
    assert np.allclose(one_by_one(model, tokens), expected, atol=atol)
    model.close()


def test_a_pass_reads_what_is_not_pinned_and_no_more(folder: Path) -> None:
    model = open_paged(folder, share=0.8)
    one_by_one(model, text(model, 16))
    stats = model.paging()
    model.close()
    assert stats.passes == 16
    assert 0 < stats.pinned_bytes < stats.pinned_bytes + stats.streamed_bytes
    per_pass = stats.bytes_read / stats.passes
    # whole blocks instead of bytes, and what was read ahead for a pass that never came
    assert stats.streamed_bytes <= per_pass <= 1.2 * stats.streamed_bytes


def test_what_several_pieces_read_stays_in_memory(folder: Path) -> None:
    """Streamed, it would be read for each of them, in every pass."""
    source = read_source(folder / "model.onnx")
    shared = max(source.weights.values(), key=lambda weight: weight.nbytes).name
    model = open_paged(folder, share=0.0)
    assert model._weights is not None
    cut = model._weights._cut
    pieces = [replace(piece, weights=(*piece.weights, ("s", shared))) for piece in cut.pieces]
    everywhere = replace(cut, pieces=tuple(pieces))
    model.close()
    assert shared in {weight.name for weight in small_weights(everywhere, source)}
    groups = own_weights(everywhere, source)
    assert groups
    assert not any(shared == weight.name for group in groups for weight in group.weights)


def test_fewer_nodes_take_less_and_are_loaded_when_they_are_planned(folder: Path) -> None:
    prepared = runtime.prepare(request(folder, max_nodes=17, fewer_nodes=(9, 5)))
    needs = prepared.needs()
    least = len(needs.batches) - 1
    rows = (*needs.common_rows(least), *needs.paged_rows(least))
    assert [batch.max_nodes for batch in needs.batches] == [
        n for n in (17, 9, 5) for _ in range(len(needs.batches) // 3)
    ]
    assert needs.batches[0].nbytes > needs.batches[least].nbytes
    plan = plan_memory(1 << 30, rows, needs.cuts)
    model = prepared.load(replace(plan, batches={"target": least}))
    assert model.info.max_nodes == 5
    model.close()
    prepared.close()


@pytest.mark.slow
def test_a_prompt_of_several_batches_takes_one_pass(paged: OnnxModel) -> None:
    """The batches follow each other through a layer while its weights are there."""
    tokens = text(paged, 40)
    object.__setattr__(paged._batcher, "chunk", 16)
    prefill(paged, tokens[:-1])
    assert paged.last_report.passes == 1
    logits = evaluate(paged, OneTree(tokens[-1]), [ROOT])[0]
    paged.truncate(0)
    assert np.allclose(logits, one_by_one(paged, tokens)[-1], atol=1e-3)


def test_a_file_cut_short_after_loading_is_an_error(tmp_path: Path) -> None:
    write_llama(tmp_path, layers=6, ffn=128, vocab=512)
    model = open_paged(tmp_path, share=0.0)
    tokens = text(model, 12)
    data = tmp_path / DATA_FILE
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    with refuses(WeightReadError):
        one_by_one(model, tokens)
    model.close()


def test_a_file_cut_short_under_a_resident_model_is_an_error(tmp_path: Path) -> None:
    """onnxruntime has parts of it mapped, so that reading on would end the process."""
    write_llama(tmp_path, layers=2, ffn=128, vocab=512)
    model = open_resident(tmp_path)
    prefill(model, [1, 2])
    os.truncate(tmp_path / DATA_FILE, 100)
    with refuses(WeightReadError):
        prefill(model, [3])
    assert model.committed_of(0) == 2
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6, 2.0])
def test_four_bits_are_packed_in_every_pass_and_compute_the_same(
    share: float, tmp_path: Path
) -> None:
    path = write_llama(tmp_path, bits=4, layers=6)
    model = open_paged(tmp_path, share)
    tokens = text(model, 8)
    expected = WholeModel(path).decode_all(tokens)
    assert np.allclose(one_by_one(model, tokens), expected, atol=0.01)
    stats = model.paging()
    assert (stats.streamed_bytes > 0) == (share < 1)
    begun_passes = stats.passes + 1  # the next one is read ahead
    assert stats.bytes_read <= 1.5 * begun_passes * stats.streamed_bytes  # layers of few blocks
    model.close()
    names = {t.name for t in threading.enumerate() if t.name.startswith("edgespec")}
    assert not names - {"edgespec-engine", "edgespec-servers"}, (
        "a model has no engine; other modules may"
    )
