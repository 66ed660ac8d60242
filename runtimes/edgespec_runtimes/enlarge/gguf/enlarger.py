"""The entry point through which the command line changes GGUF files."""

from __future__ import annotations

from pathlib import Path

from edgespec.values import DraftSizes
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.enlarge.gguf.trim import check_trimmable, trim
from edgespec_runtimes.enlarge.gguf.ways import draft_sizes
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header


class GgufTool:
    """Implements `ModelTool` of `edgespec.tools`."""

    recognises = staticmethod(runtime.recognises)
    enlarge = staticmethod(enlarge)
    check_trimmable = staticmethod(check_trimmable)
    trim = staticmethod(trim)

    def draft_sizes(self, source: Path) -> list[DraftSizes]:
        return draft_sizes(read_header(source))


tool = GgufTool()
