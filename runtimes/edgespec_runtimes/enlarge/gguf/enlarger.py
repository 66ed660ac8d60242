"""The entry point through which the command line enlarges GGUF models."""

from __future__ import annotations

from pathlib import Path

from edgespec.ports import Progress
from edgespec.values import EnlargeReport
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama.quantiser import quantise


class GgufEnlarger:
    """Implements `edgespec.models.enlarging.Enlarger`."""

    def recognises(self, source: Path) -> bool:
        return runtime.recognises(source)

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        out = folder / f"{source.stem}-{kind}.gguf"
        quantise(source, out, kind, progress)
        return out

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        return enlarge(source, out, size_bytes, progress)


tool = GgufEnlarger()
