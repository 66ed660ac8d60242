"""Reaches the tool that enlarges a model. How to enlarge is the runtime's business.

It comes from the entry point group `edgespec.tools`: no model library is imported before.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from edgespec.errors import EdgespecError, UsageError
from edgespec.ports import Progress

ENTRY_POINTS = "edgespec.tools"

Tool = Callable[[Path, Path, int, Progress | None], object]
"""Writes the second path from the first, whole or not at all; returns what describes the result."""


def enlarge(
    source: Path,
    out: Path,
    size_bytes: int,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> None:
    """Write `out`, about `size_bytes` large, with the function of `source`.

    Raises UsageError where `out` or the size cannot be meant, ModelError for `source`, and
    EdgespecError for a full disk or an installation without the tool.
    """
    if out.is_file() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
    _tool()(source, out, size_bytes, progress)


def _tool() -> Tool:
    missing = 'nothing that enlarges models is installed: pip install "edgespec[gguf]"'
    for entry in entry_points(group=ENTRY_POINTS, name="enlarge"):
        try:
            tool: Tool = entry.load()
        except ImportError as error:
            raise EdgespecError(f"{missing} ({error})") from error
        return tool
    raise EdgespecError(missing)
