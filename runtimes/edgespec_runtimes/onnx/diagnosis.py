"""Findings about onnxruntime here, for `edgespec doctor`. Loads no model."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort

from edgespec.ports.findings import Finding
from edgespec.settings.units import format_size
from edgespec_runtimes.onnx.ort.devices import CUDA_PROVIDER, Device, find_cuda, is_listed


def diagnose() -> Sequence[Finding]:
    listed = [name.removesuffix("ExecutionProvider") for name in ort.get_available_providers()]
    library = Finding(
        "libraries", "onnxruntime", f"{ort.__version__}, built with {', '.join(listed)}"
    )
    if not is_listed(CUDA_PROVIDER):
        return [library]
    found = find_cuda()
    if isinstance(found, Device):
        free, total = format_size(found.free_bytes), format_size(found.total_bytes)
        return [library, Finding("gpu", "onnxruntime", f"{found.label}, {free} of {total} free")]
    return [library, Finding("gpu", "onnxruntime", f"computes on the CPU: {found}", "note")]
