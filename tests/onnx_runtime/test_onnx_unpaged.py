"""Models with weights that cannot be bound are kept in memory whole, or refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.errors import BudgetError
from edgespec.memory import process
from edgespec.memory.budget import MIB
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.onnx import runtime
from onnx_devices import GIB, STAND_IN, use
from onnx_files import save, write_llama
from onnx_models import N_CTX, open_resident, request
from onnx_reference import WholeModel
from paging_contract import one_by_one
from port_contract import TEXT


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with its matrices as INT4 and DequantizeLinear, as quantisers write it."""
    path = write_llama(tmp_path_factory.mktemp("models") / "model", fused=True)
    model = onnx.load(path)
    matrices = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            name = node.input[1]
            model.graph.initializer.append(_quantize(matrices[name]))
            inputs = [name, f"{name}.scale"]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}.whole"], axis=1))
            node.input[1] = f"{name}.whole"
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import[0].version, model.ir_version = 21, 10  # the first that know INT4
    save(model, path)
    return path


def _quantize(tensor: TensorProto) -> TensorProto:
    """The matrix in four bits, in place; returns the scales of its columns."""
    values = numpy_helper.to_array(tensor)
    scale = np.abs(values).max(0) / 7
    flat = (np.round(values / scale).astype(np.int8) & 15).astype(np.uint8).reshape(-1, 2)
    packed = flat[:, 0] | flat[:, 1] << 4
    four_bits = helper.make_tensor(
        tensor.name, TensorProto.INT4, values.shape, packed.tobytes(), raw=True
    )
    tensor.CopyFrom(four_bits)
    return numpy_helper.from_array(scale, f"{tensor.name}.scale")


def test_a_budget_in_which_it_does_not_fit_is_refused_with_the_reason_and_one_that_works(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    settings = LoadSettings(model=path, ctx_size=N_CTX, memory_budget=10 * MIB)
    with refuses(BudgetError, figures=False) as refusal:
        session.plan(settings)
    assert "ring" not in str(refusal.value)
    smallest = refusal.value.smallest_bytes
    assert smallest is not None
    plan = session.plan(settings.model_copy(update={"memory_budget": smallest}))
    assert not plan.paged
    assert any("INT4" in note for note in plan.notes)


def test_in_memory_it_computes_what_onnxruntime_computes(path: Path) -> None:
    model = open_resident(path)
    tokens = model.vocabulary.encode(TEXT)[:8]
    expected = WholeModel(path).decode_all(tokens)
    assert np.allclose(one_by_one(model, tokens), expected, atol=1e-4)
    model.close()


def test_a_device_takes_all_of_it_or_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(STAND_IN, monkeypatch)
    prepared = runtime.prepare(request(path))
    whole_bytes = sum(row.nbytes for row in prepared.place(GIB))
    prepared.close()
    prepared = runtime.prepare(request(path))
    assert prepared.place(whole_bytes - 1) == ()
    assert prepared.needs().resident is not None
    prepared.close()


def test_a_draft_is_never_paged_and_says_nothing(path: Path) -> None:
    prepared = runtime.prepare(replace(request(path), owner="draft"))
    assert not any("paged" in note for note in prepared.notes())
    prepared.close()
