"""The runtime behind the entry point `onnx`. Opens no model itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from edgespec.ports.findings import Finding
from edgespec.runtimes import ModelRequest
from edgespec.settings.units import format_size
from edgespec.values import ModelDetails
from edgespec_runtimes.onnx import baselines
from edgespec_runtimes.onnx.files.roles import find_roles
from edgespec_runtimes.onnx.files.source import find_model, named_model, read_source
from edgespec_runtimes.onnx.graph.flow import simplified
from edgespec_runtimes.onnx.ort.devices import CUDA_PROVIDER, Device, find_cuda, is_listed
from edgespec_runtimes.onnx.prepare.details import details_of
from edgespec_runtimes.onnx.prepared import PreparedOnnx


class OnnxRuntime:
    """The entry point `onnx`."""

    name = "onnx"
    baselines = baselines

    def recognises(self, path: Path) -> bool:
        return find_model(path) is not None

    def gpu(self) -> str | None:
        """Name of the GPU that is used by default; None if there is none."""
        found = find_cuda()
        return found.label if isinstance(found, Device) else None

    def diagnose(self) -> Sequence[Finding]:
        listed = [name.removesuffix("ExecutionProvider") for name in ort.get_available_providers()]
        library = Finding(
            "libraries", "onnxruntime", f"{ort.__version__}, built with {', '.join(listed)}"
        )
        if not is_listed(CUDA_PROVIDER):
            return [library]
        found = find_cuda()
        if isinstance(found, Device):
            free, total = format_size(found.free_bytes), format_size(found.total_bytes)
            return [
                library,
                Finding("gpu", "onnxruntime", f"{found.label}, {free} of {total} free"),
            ]
        return [library, Finding("gpu", "onnxruntime", f"computes on the CPU: {found}", "note")]

    def describe(self, path: Path) -> ModelDetails:
        source = read_source(named_model(path))
        model = simplified(source.model, str(source.path))
        return details_of(source, find_roles(model.graph, str(source.path)))

    def prepare(self, request: ModelRequest) -> PreparedOnnx:
        prepared = PreparedOnnx(request)
        try:
            prepared.read(named_model(request.path))
        except BaseException:
            prepared.close()
            raise
        return prepared


runtime = OnnxRuntime()
