"""Paths in edgespec's cache folder, which holds reproducible files.

Knows folders and names; neither creates models nor opens them.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.errors import EdgespecError


def folder() -> Path:
    """The cache folder by the XDG base directory specification; it may not exist yet.

    For a user without a home folder, or in that of another user, it is one that cannot be made, in
    which nothing is found.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        path = (base if base.is_absolute() else Path.home() / ".cache") / "edgespec"
        (path / "drafts").exists()  # raises where nobody may look
    except (OSError, RuntimeError):
        path = Path(os.devnull, "no home folder", "edgespec")
    return path


def make_folder() -> Path:
    """Create the cache folder if it is missing, and return it. Raises EdgespecError."""
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdgespecError(
            f"the cache folder {path} cannot be made ({error.strerror}): let XDG_CACHE_HOME name a "
            "folder that can be written"
        ) from error
    return path


def enlarged_target(target_sha256: str, size_bytes: int) -> Path:
    """Path of the embedded target, enlarged to about `size_bytes`."""
    return folder() / f"embedded-{target_sha256[:8]}-{size_bytes >> 20}MiB.gguf"


def calibrations() -> Path:
    """Folder of calibrations, one small file per pair of models."""
    return folder() / "calibrations"


def prompts() -> Path:
    """Folder of the prompt cache that servers have where none is named."""
    return folder() / "prompts"


def drafts() -> Path:
    """Folder of what is known about drafts made from targets, one small file per target."""
    return folder() / "drafts"


def lower_parts(draft: Path) -> Path:
    """Path of the lower bits of a target's weights, beside a draft that has the upper ones."""
    return draft.with_suffix(".lower")


def models() -> list[Path]:
    """GGUF files and folders with ONNX files in the cache, sorted, without unfinished ones."""
    if not folder().is_dir():
        return []
    return sorted(
        path
        for path in folder().iterdir()
        if not path.name.startswith(".")
        and (path.suffix == ".gguf" or (path.is_dir() and any(path.glob("*.onnx"))))
    )
