"""A decoder that a device with memory of its own computes: the same text, within that memory.

A stand-in computes, and CUDA where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec_runtimes.onnx.ort.devices import CUDA_PROVIDER, Device, find_cuda
from onnx_devices import GIB, STAND_IN, open_whole, prepare, use
from onnx_models import ContractOfKind, made_in
from paging_contract import one_by_one
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


@pytest.mark.slow
class TestWholeOnTheDeviceKeepsTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_whole)


@pytest.mark.slow
class TestFusedAttentionByRowsKeepsTheContract(ContractOfKind):
    """CUDA's fused attention refuses masks."""

    atol = 1e-4
    opened = staticmethod(open_whole)
    kind: ClassVar = {"fused": True}


@needs_gpu
@pytest.mark.usefixtures("on_gpu")
class TestWholeOnCudaKeepsTheContract(ContractOfKind):
    atol = 1e-2
    opened = staticmethod(open_whole)


@needs_gpu
@pytest.mark.usefixtures("on_gpu")
class TestFourBitsOnCudaKeepTheContract(ContractOfKind):
    atol = 2e-2
    opened = staticmethod(open_whole)
    kind: ClassVar = {"bits": 4}


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


@needs_none
def test_a_provider_that_onnxruntime_drops_in_silence_is_named(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing: onnxruntime-gpu lists CUDA without a GPU, and computes on the CPU."""
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime was built without CUDA")
    use(Device(CUDA_PROVIDER, "no GPU", GIB, GIB), monkeypatch)
    prepared = prepare(models())
    (note,) = prepared.notes()
    assert "onnxruntime could not use no GPU: the CPU computes" in note
    assert prepared.gpu_memory is None
    prepared.close()
