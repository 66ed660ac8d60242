"""A decoder that a device with memory of its own computes: the same text, within that memory.

A stand-in computes, and CUDA where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.errors import EdgespecError
from edgespec.memory.budget import plan_memory
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.ort.devices import CUDA_PROVIDER, Device, find_cuda
from edgespec_runtimes.onnx.weights import offloaded
from onnx_devices import GIB, STAND_IN, open_offloaded, open_whole, place_share, prepare, use
from onnx_models import ContractOfKind, made_in
from onnx_reference import WholeModel
from paging_contract import PagingContract, load_paged, one_by_one
from port_contract import TEXT

GPU = find_cuda()
needs_gpu = pytest.mark.skipif(not isinstance(GPU, Device), reason=f"no CUDA device: {GPU}")
needs_none = pytest.mark.skipif(isinstance(GPU, Device), reason="CUDA can be used here")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return made_in(tmp_path_factory.mktemp("models"), layers=4)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    use(STAND_IN, monkeypatch)
    return STAND_IN


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(GPU, Device)
    use(GPU, monkeypatch)


@pytest.fixture
def paged(models: Callable[..., Path]) -> Iterator[OnnxModel]:
    model = open_offloaded(models(ffn=128, vocab=512))
    yield model
    model.close()


@pytest.mark.slow
class TestWholeOnTheDeviceKeepsTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_whole)


@pytest.mark.slow
class TestPartsThatStayKeepTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_offloaded)


@pytest.mark.slow
class TestHalfPrecisionCopiedInEveryPassKeepsTheContract(ContractOfKind):
    atol = 0.02
    opened = partial(open_offloaded, gpu_share=0.0, share=0.0)
    kind: ClassVar = {"dtype": "float16"}


@pytest.mark.slow
class TestOffloadedFourBitsKeepTheContract(ContractOfKind):
    """Packed nowhere: their weights are bound as they are."""

    atol = 1e-2
    opened = staticmethod(open_offloaded)
    kind: ClassVar = {"bits": 4}


@pytest.mark.slow
class TestFusedAttentionByRowsKeepsTheContract(ContractOfKind):
    """CUDA's fused attention refuses masks."""

    atol = 1e-4
    opened = staticmethod(open_offloaded)
    kind: ClassVar = {"fused": True}


@pytest.mark.slow
class TestOffloadedKeepsThePagingContract(PagingContract):
    """Slots are copied from, not bound."""


@needs_gpu
@pytest.mark.usefixtures("on_gpu")
class TestWholeOnCudaKeepsTheContract(ContractOfKind):
    atol = 1e-2
    opened = staticmethod(open_whole)


@needs_gpu
@pytest.mark.usefixtures("on_gpu")
class TestPartsOnCudaKeepTheContract(ContractOfKind):
    atol = 1e-2
    opened = staticmethod(open_offloaded)


@needs_gpu
@pytest.mark.usefixtures("on_gpu")
class TestFourBitsOnCudaKeepTheContract(ContractOfKind):
    atol = 2e-2
    opened = staticmethod(open_offloaded)
    kind: ClassVar = {"bits": 4}


@pytest.mark.costly
@pytest.mark.parametrize("gpu_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_logits_equal_the_whole_models_wherever_weights_are(
    models: Callable[..., Path], kind: str, gpu_share: float
) -> None:
    path = models(dtype=kind)
    model = open_offloaded(path, gpu_share)
    tokens = model.vocabulary.encode(2 * TEXT)[:12]
    whole = WholeModel(path / "model.onnx")
    expected = np.stack([whole.decode(token) for token in tokens])
    atol = 1e-4 if kind == "float32" else 0.02
    assert np.allclose(one_by_one(model, tokens), expected, atol=atol)
    model.close()


@pytest.mark.slow
def test_a_pass_reads_what_stays_neither_on_the_device_nor_in_memory(
    models: Callable[..., Path],
) -> None:
    prepared = prepare(models(layers=8, ffn=128, vocab=512))
    place_share(prepared, 0.2)
    kept_bytes = prepared._deployed.placement.kept_bytes
    model = load_paged(prepared, 0.8)
    one_by_one(model, model.vocabulary.encode(2 * TEXT)[:16])
    stats = model.paging()
    model.close()
    groups = prepared._deployed.fitted.groups
    of_all = sum(weight.nbytes for group in groups for weight in group.weights)
    assert stats.pinned_bytes > 0
    assert stats.streamed_bytes > 0
    assert kept_bytes > 0
    # what the device keeps is rounded to whole addresses
    left = of_all - kept_bytes
    assert left <= stats.pinned_bytes + stats.streamed_bytes <= left + 256 * 64
    per_pass = stats.bytes_read / stats.passes
    assert stats.streamed_bytes <= per_pass <= 1.3 * stats.streamed_bytes


@pytest.mark.costly
@pytest.mark.parametrize("kind", [{}, {"dtype": "float16"}, {"bits": 4}, {"tied": True}])
def test_what_is_taken_on_the_device_is_what_was_planned(
    models: Callable[..., Path], kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    real = offloaded.room_on

    def counted(device: Device, element: int, shape: tuple[int, ...]) -> Any:
        value = real(device, element, shape)
        taken.append(value.tensor_size_in_bytes())
        return value

    monkeypatch.setattr(offloaded, "room_on", counted)
    prepared = prepare(models(**kind))
    gpu_bytes = place_share(prepared, 0.4)
    rows = prepared.place(gpu_bytes)
    load_paged(prepared, 0.5).close()
    weights, room, buffers = rows
    assert sum(row.nbytes for row in rows) <= gpu_bytes
    assert 0 < sum(taken) <= weights.nbytes + room.nbytes <= sum(taken) + 256 * len(taken)
    assert buffers.nbytes > 0


@pytest.mark.slow
def test_a_slot_is_free_while_the_device_computes_with_its_copy(
    models: Callable[..., Path],
) -> None:
    model = open_offloaded(models(layers=6, ffn=128, vocab=512), gpu_share=0.0, share=0.0)
    weights = model._weights
    assert weights is not None
    assert weights.pager is not None
    for index in range(len(weights._cut.pieces)):
        with weights.held(index):
            assert not any(slot.held for slot in weights.pager._slots)
    model.close()


def test_what_stays_on_the_device_takes_no_memory_of_the_process(
    models: Callable[..., Path],
) -> None:
    prepared = prepare(models())
    on_cpu = sum(row.nbytes for row in prepared.needs().resident or ())
    prepared.place(GIB)
    assert prepared.needs().cuts == ()
    assert sum(row.nbytes for row in prepared.needs().resident or ()) < on_cpu / 2
    prepared.close()


@pytest.mark.slow
def test_half_precision_is_not_converted_there(models: Callable[..., Path]) -> None:
    def paged_bytes() -> int:
        return sum(row.nbytes for row in prepared.needs().paged if "single" in row.what)

    prepared = prepare(models(dtype="float16"))
    place_share(prepared, 0.0)
    assert paged_bytes() == 0
    prepared.close()
    prepared = prepare(models(dtype="float16"))
    prepared.place(0)
    assert paged_bytes() > 0
    prepared.close()


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["target", "draft"])
def test_what_finds_no_room_is_computed_by_the_cpu_and_says_so(
    models: Callable[..., Path], owner: str
) -> None:
    prepared = prepare(models(dtype="float16"), owner)
    assert prepared.place(1000) == ()
    (note,) = prepared.notes()
    assert "MiB on a stand-in, 0 are left for it: the CPU computes" in note
    assert prepared.gpu_memory is None
    model = prepared.load(None)
    tokens = model.vocabulary.encode(TEXT)[:4]
    assert np.isfinite(one_by_one(model, tokens)).all()
    model.close()
    prepared.close()


@pytest.mark.slow
def test_without_being_given_memory_the_cpu_computes(models: Callable[..., Path]) -> None:
    prepared = prepare(models())
    model = prepared.load(None)
    assert any("no memory of a stand-in was given" in note for note in prepared.notes())
    model.close()
    prepared.close()


def test_everything_on_the_device_part_by_part_needs_no_pager(
    models: Callable[..., Path],
) -> None:
    """Buffers of one session that has everything do not fit here; those of parts do."""
    prepared = prepare(models())
    needs = prepared._gpu_needs()
    all_parts = needs.fixed_bytes + sum(piece.nbytes for piece in needs.pieces)
    needs = replace(needs, whole_bytes=all_parts + 1)
    prepared._gpu_needs = lambda: needs
    prepared.place(all_parts)
    assert len(prepared._deployed.placement.kept) == len(needs.pieces)
    needs = prepared.needs()
    rows, paged = needs.common_rows(), needs.paged_rows()
    model = prepared.load(plan_memory(GIB, rows, needs.cuts, None, paged))
    tokens = model.vocabulary.encode(TEXT)[:4]
    assert np.isfinite(one_by_one(model, tokens)).all()
    assert model.paging().bytes_read == 0
    model.close()
    prepared.close()


def test_a_device_that_takes_less_than_planned_is_an_error_with_a_next_step(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : out of memory")

    monkeypatch.setattr(offloaded, "room_on", full)
    prepared = prepare(models())
    place_share(prepared, 0.4)
    with pytest.raises(EdgespecError, match="out of memory; lower `gpu_memory_budget`"):
        load_paged(prepared, 0.5)


@needs_none
def test_a_provider_that_onnxruntime_drops_in_silence_is_named(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing: onnxruntime-gpu lists CUDA without a GPU, and computes on the CPU."""
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime was built without CUDA")
    use(Device(CUDA_PROVIDER, "no GPU", "cuda", GIB, GIB), monkeypatch)
    prepared = prepare(models())
    (note,) = prepared.notes()
    assert "onnxruntime could not use no GPU: the CPU computes" in note
    assert prepared.gpu_memory is None
    prepared.close()


@pytest.mark.slow
def test_what_fails_in_the_processs_memory_is_computed_by_the_cpu(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CoreML accepts graphs that it cannot run."""
    use(Device("CPUExecutionProvider", "CoreML"), monkeypatch)
    monkeypatch.setattr(Device, "is_cpu", property(lambda device: device.label != "CoreML"))
    real = OnnxModel.evaluate
    failures = iter([True])

    def evaluate(model: OnnxModel, *arguments: Any) -> list[np.ndarray]:
        if next(failures, False):
            raise EdgespecError("zero elements")
        return real(model, *arguments)

    monkeypatch.setattr(OnnxModel, "evaluate", evaluate)
    prepared = prepare(models())
    assert any(row.what == "copies of CoreML" for row in prepared.needs().resident or ())
    model = prepared.load(None)
    assert any(
        "CoreML failed (zero elements): the CPU computes" in note for note in prepared.notes()
    )
    tokens = model.vocabulary.encode(TEXT)[:3]
    assert np.isfinite(one_by_one(model, tokens)).all()
    model.close()
    prepared.close()
