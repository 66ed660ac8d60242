"""ONNX models on onnxruntime: options, and the lazily imported runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec_runtimes.onnx.options import OnnxOptions
from edgespec_runtimes.onnx.ort.telemetry import silenced

if TYPE_CHECKING:
    from edgespec_runtimes.onnx.entry import runtime as runtime

OPTIONS = OnnxOptions


def __getattr__(name: str) -> object:
    if name != "runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with silenced():
        from edgespec_runtimes.onnx.entry import runtime
    globals()["runtime"] = runtime
    return runtime
