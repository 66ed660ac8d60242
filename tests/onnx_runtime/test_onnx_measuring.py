"""The rows of a plan are what onnxruntime takes for the weights."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgespec.memory.needs import ModelNeeds
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.graph.accuracy import EIGHT_BITS, set_accuracy
from edgespec_runtimes.onnx.prepare import measuring
from edgespec_runtimes.onnx.prepared import PreparedOnnx
from onnx_files import edit_graph, save, write_llama
from onnx_models import open_resident, request

VOCAB, HIDDEN = 512, 64


def needs_of(path: Path) -> ModelNeeds:
    with closing(runtime.prepare(request(path))) as prepared:
        return prepared.needs()


def resident(needs: ModelNeeds) -> dict[str, int]:
    return {row.what: row.nbytes for row in needs.resident or ()}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measuring, "MEASURED_BYTES", 0)
    return write_llama(tmp_path / "packed", hidden=128, ffn=512, vocab=4096, bits=4)


def test_what_was_measured_is_planned(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = measuring.SessionSize(kept_bytes=30 << 20, private_bytes=20 << 20, peak_bytes=50 << 20)

    def sizes(prepared: PreparedOnnx) -> measuring.MeasuredOnnx:
        return measuring.MeasuredOnnx((size,) * len(prepared._deployed.fitted.cut.pieces))

    monkeypatch.setattr(PreparedOnnx, "_measured", property(sizes))
    needs = needs_of(packed)
    n_pieces = len(needs.cuts[0])
    assert resident(needs)["weights"] >= n_pieces * size.kept_bytes
    assert max(segment.slot_bytes for segment in needs.cuts[0]) == size.kept_bytes
    streamed = {row.what: row.nbytes for row in needs.paged}["packed weights of streamed layers"]
    assert streamed >= 2 * size.private_bytes


def test_without_a_trial_sizes_are_computed(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_tried", lambda *_: [])
    prepared = runtime.prepare(request(packed))
    assert resident(prepared.needs())["weights"] > 0
    assert "could not be measured" in " ".join(prepared.notes())
    prepared.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="trials are made on Linux")
def test_a_plan_without_a_trial_is_no_smaller_than_one_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that failed once had named a budget of 443 MiB, and the next start asked for 485."""
    monkeypatch.setattr(measuring, "MEASURED_BYTES", 0)
    path = write_llama(tmp_path, hidden=512, ffn=2048, layers=2, bits=4, fused=True)
    edit_graph(path, lambda model: set_accuracy(model.graph, EIGHT_BITS))
    with monkeypatch.context() as failing:
        failing.setattr(measuring, "_tried", lambda *_: [])
        without = needs_of(path)
    measured = needs_of(path)
    assert sum(resident(without).values()) >= sum(resident(measured).values())
    pairs = zip(without.cuts[0], measured.cuts[0], strict=True)
    assert all(one.slot_bytes >= other.slot_bytes for one, other in pairs)


def test_a_table_that_is_read_by_row_is_no_resident_weight(tmp_path: Path) -> None:
    path = write_llama(tmp_path, layers=2, vocab=VOCAB, hidden=HIDDEN)
    table_bytes = 4 * VOCAB * HIDDEN
    prepared = runtime.prepare(request(path))
    stored = prepared._source.weight_bytes
    weights = resident(prepared.needs())["weights"]
    prepared.close()
    assert weights == stored - table_bytes
    model = open_resident(path)
    assert "input_ids" not in model._decoder._session.inputs  # type: ignore[union-attr]
    model.close()


def quantise_head(path: Path) -> None:
    """Store the head as integers, which are transposed and become floats."""
    model = onnx.load(path)
    head = next(node for node in model.graph.node if "logits" in node.output)
    tensor = next(t for t in model.graph.initializer if t.name == head.input[1])
    values = numpy_helper.to_array(tensor).T
    scale = np.float32(np.abs(values).max() / 127)
    quantised = np.round(values / scale).astype(np.int8)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(quantised), tensor.name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(scale), "head.scale"))
    place = list(model.graph.node).index(head)
    for at, node in enumerate(
        (
            helper.make_node("Transpose", [tensor.name], ["head.turned"], perm=[1, 0]),
            helper.make_node("DequantizeLinear", ["head.turned", "head.scale"], ["head.floats"]),
        )
    ):
        model.graph.node.insert(place + at, node)
    model.graph.node[place + 2].input[1] = "head.floats"
    save(model, path)


def test_floats_of_a_quantised_head_are_planned(tmp_path: Path) -> None:
    """onnxruntime makes them in every run."""
    path = write_llama(tmp_path, layers=2, vocab=VOCAB, hidden=HIDDEN)
    quantise_head(path)
    needs = needs_of(path)
    assert resident(needs)["weights in single precision"] == 4 * VOCAB * HIDDEN
    paged = {row.what: row.nbytes for row in needs.paged}
    assert paged["weights in single precision"] == 4 * VOCAB * HIDDEN


@pytest.mark.slow
def test_a_half_precision_head_that_is_transposed_exists_three_times(tmp_path: Path) -> None:
    """onnxruntime transposes it in each run, and converts the result to single precision."""
    rows = {}
    for tied in (False, True):
        path = write_llama(
            tmp_path / str(tied), vocab=VOCAB, hidden=HIDDEN, dtype="float16", tied=tied
        )
        rows[tied] = {row.what: row.nbytes for row in needs_of(path).paged}
    head_bytes = 2 * VOCAB * HIDDEN
    more = (rows[tied]["weights in single precision"] for tied in (True, False))
    assert next(more) - next(more) == head_bytes
