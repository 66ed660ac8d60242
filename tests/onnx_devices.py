"""A device with memory of its own for machines that have none, and models that it computes.

The CPU computes, through OpenVINO where onnxruntime was built with it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec_runtimes.onnx import prepared, runtime
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.ort.devices import CPU_PROVIDER, Device, is_listed
from edgespec_runtimes.onnx.prepare.providers import ChosenDevice
from onnx_models import request

GIB = 1 << 30
OPENVINO = "OpenVINOExecutionProvider"
PROVIDER = OPENVINO if is_listed(OPENVINO) else CPU_PROVIDER
STAND_IN = Device(PROVIDER, "a stand-in", total_bytes=GIB, free_bytes=GIB)


def use(device: Device, patch: pytest.MonkeyPatch) -> None:
    """Let ONNX models choose this device from now on."""
    patch.setattr(prepared, "choose", lambda _: ChosenDevice(device))


def prepare(path: Path, owner: str = "target", **options: object) -> Any:
    return runtime.prepare(replace(request(path, **options), owner=owner))


def open_whole(path: Path, **options: object) -> OnnxModel:
    """All of it on the device."""
    with closing(prepare(path, **options)) as prepared:
        prepared.place(GIB)
        model = prepared.load(None)
        assert isinstance(model, OnnxModel)
        return model
