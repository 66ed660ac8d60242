"""Writes larger models.

The tool for the format (`edgespec.tools`) imports no model library before it is used.
"""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import ModelError, UsageError
from edgespec.ports import Progress
from edgespec.tools import load_tool
from edgespec.values import EnlargeReport


def enlarge(
    source: Path,
    out: Path,
    size_bytes: int,
    progress: Progress | None = None,
) -> EnlargeReport:
    """Write `out`, about `size_bytes` large, which computes the same function as `source`.

    Raises UsageError if `out` or the size is invalid, ModelError if `source` is, and EdgespecError
    for a full disk or if the tool is not installed.
    """
    if out.is_file():
        raise UsageError(f"{out} exists: name another file, or delete it")
    if not source.exists():
        raise ModelError(f"{source} does not exist: check the path of the model to enlarge")
    tool = load_tool()
    if not tool.recognises(source):
        raise ModelError(f"{source} cannot be enlarged: name a GGUF model")
    return tool.enlarge(source, out, size_bytes, progress)
