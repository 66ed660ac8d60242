"""The entry point through which the command line changes GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.ports import Progress
from edgespec.values import TrainingText
from edgespec_runtimes.adapt import adaptable
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.enlarge.gguf.enlarged_heads import fit_head
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, trim
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.heads import is_head
from edgespec_runtimes.gguf.file.trimmed_header import trimmed_bytes
from edgespec_runtimes.gguf.llama.quantiser import quantise


class GgufTool:
    """Implements `ModelTool` of `edgespec.tools`."""

    recognises = staticmethod(runtime.recognises)
    enlarge = staticmethod(enlarge)
    fit_head = staticmethod(fit_head)
    check_trimmable = staticmethod(check_trimmable)
    trim = staticmethod(trim)

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        out = folder / f"{source.stem}-{kind}.gguf"
        quantise(source, out, kind, progress)
        return out

    def trimmed_bytes(self, source: Path, bits: float) -> int:
        return trimmed_bytes(read_header(source), bits)

    def is_head(self, draft: Path) -> bool:
        return is_head(read_header(draft))

    def check_adaptable(self, source: Path) -> None:
        adaptable.check(read_header(source))

    def adapt(
        self,
        source: Path,
        out: Path,
        name: str,
        texts: Sequence[TrainingText],
        n_threads: int,
        report: Callable[[float], None],
    ) -> float:
        from edgespec_runtimes.adapt.training import adapt  # imports PyTorch

        return adapt(source, out, name, texts, n_threads, report)


tool = GgufTool()
