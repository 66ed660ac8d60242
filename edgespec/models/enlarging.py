"""Writes larger models, and the heads that fit them.

The tool for the format (`edgespec.tools`) imports no model library before it is used.
"""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path

from edgespec.errors import ModelError, UsageError
from edgespec.ports import Progress
from edgespec.tools import ModelTool, load_tool
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
    return _tool_for(source).enlarge(source, out, size_bytes, progress)


def fitting_draft(draft: Path, source: Path, enlarged: Path) -> Path:
    """The draft of `source` for the model enlarged from it.

    A head is adapted and written beside `enlarged`, once; any other draft serves both. Raises
    ModelError and EdgespecError.
    """
    tool = load_tool()
    if not tool.recognises(draft) or not tool.is_head(draft):
        return draft
    with draft.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    fitted = enlarged.with_name(f"{enlarged.stem}-head-{checksum[:16]}.gguf")
    if not fitted.exists() or fitted.stat().st_mtime_ns < enlarged.stat().st_mtime_ns:
        for older in enlarged.parent.glob(f"{glob.escape(enlarged.stem)}-head*.gguf"):
            older.unlink(missing_ok=True)
        tool.fit_head(draft, source, enlarged, fitted)
    return fitted


def _tool_for(source: Path) -> ModelTool:
    if not source.exists():
        raise ModelError(f"{source} does not exist: check the path of the model to enlarge")
    tool = load_tool()
    if not tool.recognises(source):
        raise ModelError(f"{source} cannot be enlarged: name a GGUF model")
    return tool
