"""A device with memory of its own for machines that have none, and models that it computes.

The CPU computes, through OpenVINO where onnxruntime was built with it; what is "on the device" are
OrtValues of their own. Everything but names is what happens on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec_runtimes.onnx import prepared, runtime
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.ort.devices import CPU_PROVIDER, Device, is_listed
from edgespec_runtimes.onnx.prepare.providers import ChosenDevice
from onnx_models import request
from paging_contract import load_paged

GIB = 1 << 30
OPENVINO = "OpenVINOExecutionProvider"
PROVIDER = OPENVINO if is_listed(OPENVINO) else CPU_PROVIDER
STAND_IN = Device(PROVIDER, "a stand-in", "cpu", total_bytes=GIB, free_bytes=GIB)


def use(device: Device, patch: pytest.MonkeyPatch) -> None:
    """Let ONNX models choose this device from now on."""
    patch.setattr(prepared, "choose", lambda _: ChosenDevice(device))


def prepare(path: Path, owner: str = "target", **options: object) -> Any:
    return runtime.prepare(replace(request(path, **options), owner=owner))


def place_share(prepared: Any, share: float) -> int:
    """Give it room for a share of the weights beside the least; returns the bytes.

    Of tiny models all weights together take less than the buffers of parts: such a session is
    made to look larger.
    """
    needs = prepared._gpu_needs()
    needs = replace(needs, whole_bytes=GIB)
    prepared._gpu_needs = lambda: needs
    weights = sum(piece.nbytes for piece in needs.pieces)
    gpu_bytes = needs.least_bytes + int(share * weights)
    prepared.place(gpu_bytes)
    assert prepared._deployed.placement.uses_gpu
    assert not prepared._deployed.placement.is_whole
    return gpu_bytes


def open_offloaded(
    path: Path, gpu_share: float = 0.4, share: float = 0.5, **options: object
) -> OnnxModel:
    """Some of the weights on the device, of the others a share in memory."""
    prepared = prepare(path, **options)
    place_share(prepared, gpu_share)
    model = load_paged(prepared, share)
    assert isinstance(model, OnnxModel)
    return model


def open_whole(path: Path, **options: object) -> OnnxModel:
    """All of it on the device."""
    prepared = prepare(path, **options)
    try:
        prepared.place(GIB)
        model = prepared.load(None)
        assert isinstance(model, OnnxModel)
        return model
    finally:
        prepared.close()
