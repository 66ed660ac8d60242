"""ONNX models on onnxruntime: options, and the lazily imported runtime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgespec_runtimes.onnx.options import OnnxOptions

if TYPE_CHECKING:
    from edgespec_runtimes.onnx.entry import runtime as runtime

OPTIONS = OnnxOptions
SWITCH = "ORT_DISABLE_TELEMETRY"


def __getattr__(name: str) -> object:
    if name != "runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # onnxruntime's official builds send events to their maker, unless told otherwise as they start
    unset = SWITCH not in os.environ
    os.environ.setdefault(SWITCH, "1")
    try:
        from edgespec_runtimes.onnx.entry import runtime
    finally:
        if unset:
            del os.environ[SWITCH]
    return runtime
