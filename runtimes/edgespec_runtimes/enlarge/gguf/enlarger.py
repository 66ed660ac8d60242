"""The entry point through which the command line changes GGUF files."""

from __future__ import annotations

from pathlib import Path

from edgespec.values import NestedSizes
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, trim
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.own_draft.nested import nested_sizes
from edgespec_runtimes.gguf.own_draft.trimmed_header import trimmed_bytes


class GgufTool:
    """Implements `ModelTool` of `edgespec.tools`."""

    recognises = staticmethod(runtime.recognises)
    enlarge = staticmethod(enlarge)
    check_trimmable = staticmethod(check_trimmable)
    trim = staticmethod(trim)

    def trimmed_bytes(self, source: Path, bits: float) -> int:
        return trimmed_bytes(read_header(source), bits)

    def nested_sizes(self, source: Path) -> list[NestedSizes]:
        return nested_sizes(read_header(source))


tool = GgufTool()
