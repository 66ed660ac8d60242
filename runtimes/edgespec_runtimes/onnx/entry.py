"""The runtime behind the entry point `onnx`. Opens no model itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnxruntime as ort

from edgespec.errors import ModelError
from edgespec.registry import Finding, ModelRequest, Runtime
from edgespec.settings.units import format_size
from edgespec.values import ModelDetails
from edgespec_runtimes.onnx import baselines
from edgespec_runtimes.onnx.files.roles import find_roles
from edgespec_runtimes.onnx.files.source_model import find_model, named_model, read_source
from edgespec_runtimes.onnx.graph.flow import simplified
from edgespec_runtimes.onnx.ort.devices import CUDA_PROVIDER, Device, find_cuda, is_listed
from edgespec_runtimes.onnx.ort.packages import check_packages
from edgespec_runtimes.onnx.prepare.details import details_of
from edgespec_runtimes.onnx.prepared import PreparedOnnx

_CONTRADICTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of reading a graph whose parts contradict each other in a way that no check names."""


class OnnxRuntime(Runtime):
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
            gpu = Finding("gpu", "onnxruntime", f"{found.label}, {free} of {total} free")
        else:
            gpu = Finding("gpu", "onnxruntime", f"computes on the CPU: {found}", "note")
        return [library, gpu]

    def describe(self, path: Path) -> ModelDetails:
        with _translated(path):
            source = read_source(named_model(path))
            model = simplified(source.model, str(source.path))
            return details_of(source, find_roles(model.graph, str(source.path)))

    def prepare(self, request: ModelRequest) -> PreparedOnnx:
        check_packages()
        prepared = PreparedOnnx(request)
        try:
            with _translated(request.path):
                prepared.read(named_model(request.path))
        except BaseException:
            prepared.close()
            raise
        return prepared


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Translate what a graph that contradicts itself makes Python raise; errors have one line."""
    try:
        yield
    except ModelError as error:
        line = " ".join(str(error).split())  # names of a graph may have line breaks
        if len(str(error).splitlines()) <= 1:
            raise
        raise ModelError(line) from error
    except _CONTRADICTIONS as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(
            f"{path} is damaged, or of a kind that is not supported ({reason}); export or copy it "
            "again"
        ) from error


runtime = OnnxRuntime()
