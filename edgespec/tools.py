"""The tool that changes model files: trims, adds layers.

It comes from the entry point group `edgespec.tools`; no model library is imported before.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from edgespec import extras
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.ports import Progress
from edgespec.values import DraftSizes, EnlargeReport

GROUP, NAME = "edgespec.tools", "gguf"


class ModelTool(Protocol):
    """Protocol of the entry point. Its output files are written atomically."""

    def recognises(self, source: Path) -> bool:
        """True if the file or folder looks like a model in the tool's format."""

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        """Write `out`, about `size_bytes` large, which computes the same function as `source`."""

    def check_trimmable(self, source: Path) -> None:
        """Raise ModelError for a model of which `trim` cannot write a draft."""

    def draft_sizes(self, source: Path) -> Sequence[DraftSizes]:
        """Sizes of the drafts that `trim` can write of the model."""

    def trim(
        self,
        source: Path,
        out: Path,
        kind: str,
        token_ids: Sequence[int],
        progress: Progress | None = None,
    ) -> None:
        """Write `out`, the trimmed copy of `source` in quantisation `kind`, whose head rates
        `token_ids`, ascending. If in NESTED, it has the upper bits of the weights, and the lower
        ones are written beside it. What an interrupted call left there is gone on with. Raises
        EdgespecError for a full disk."""


def load_tool() -> ModelTool:
    """Import the tool. Raises EdgespecError if it is not installed."""
    try:
        (entry,) = entry_points(group=GROUP, name=NAME)
        tool: ModelTool = entry.load()
    except (ImportError, ValueError) as error:
        raise EdgespecError(
            f"changing a model's file needs {extras.install_command(NAME)} ({error})"
        ) from error
    return tool


def enlarge(
    source: Path, out: Path, size_bytes: int, progress: Progress | None = None
) -> EnlargeReport:
    """Write `out`, about `size_bytes` large, which computes the same function as `source`.

    Raises UsageError if `out` or the size is invalid, ModelError if `source` is, and EdgespecError
    for a full disk or if the tool is not installed.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} exists: name another file, or delete it")
    if not source.exists():
        raise ModelError(f"{source} does not exist: check the path of the model to enlarge")
    tool = load_tool()
    if not tool.recognises(source):
        raise ModelError(f"{source} cannot be enlarged: name a GGUF model")
    return tool.enlarge(source, out, size_bytes, progress)
