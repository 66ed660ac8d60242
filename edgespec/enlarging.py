"""Makes an enlarged model file, whole or not at all. How to enlarge is the runtime's business.

The tool comes from the entry point group `edgespec.tools`, so that no model library is imported
before it is asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.ports import Progress

ENTRY_POINTS = "edgespec.tools"

Tool = Callable[[Path, Path, int, Progress | None], object]
"""Writes the second path from the first; what it returns describes the result."""


def enlarge(
    source: Path, out: Path, size_bytes: int, progress: Progress | None, force: bool = False
) -> None:
    """Write `out`, about `size_bytes` large, with the function of `source`.

    `out` appears when it is complete: an error, a full disk or Ctrl-C leave nothing behind. Raises
    UsageError where `out` cannot be meant, ModelError for `source`.
    """
    _check(source, out, force)
    free = shutil.disk_usage(out.parent).free
    if free < size_bytes:
        raise EdgespecError(
            f"{out.parent} has {free >> 20} MiB left, {size_bytes >> 20} MiB are needed: "
            "choose a smaller --size or another place"
        )
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        _tool()(source, partial, size_bytes, progress)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())  # direct reads of dirty pages would wait for them
        partial.replace(out)
    except OSError as error:
        raise EdgespecError(f"cannot write {out}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _check(source: Path, out: Path, force: bool) -> None:
    if not source.is_file():
        raise ModelError(f"{source} is not a file: name a GGUF file to enlarge")
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist")
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name the file to write")
    if out.exists() and out.samefile(source):
        raise UsageError(f"{out} is the source itself: name another file to write")
    if out.exists() and not force:
        raise UsageError(f"{out} exists: --force overwrites it")


def _tool() -> Tool:
    found = entry_points(group=ENTRY_POINTS, name="enlarge")
    if not found:
        raise EdgespecError(
            'nothing that enlarges models is installed: pip install "edgespec[gguf]"'
        )
    try:
        tool: Tool = next(iter(found)).load()
        return tool
    except ImportError as error:
        raise EdgespecError(
            f'enlarging needs more than is installed ({error}): pip install "edgespec[gguf]"'
        ) from error
