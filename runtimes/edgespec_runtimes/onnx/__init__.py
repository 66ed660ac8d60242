"""ONNX models on onnxruntime: options, and the runtime when it is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgespec_runtimes.onnx.options import OnnxOptions

if TYPE_CHECKING:
    from edgespec_runtimes.onnx.entry import runtime as runtime

OPTIONS = OnnxOptions


def __getattr__(name: str) -> object:
    if name != "runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # onnxruntime's official builds send events to their maker, and read this as they start
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from edgespec_runtimes.onnx.entry import runtime

    return runtime
