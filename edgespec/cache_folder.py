"""Where edgespec keeps what can be made again, and how the models there are named.

Knows folders and names; neither makes models nor opens them.
"""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Where the XDG base directory specification wants it; it need not exist yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "edgespec"


def enlarged_target(target_sha256: str, size_bytes: int) -> Path:
    """The place of the embedded target, enlarged to about `size_bytes`."""
    return folder() / f"{_made_from(target_sha256)}{size_bytes >> 20}MiB.gguf"


def is_outdated(path: Path, target_sha256: str) -> bool:
    """Whether an enlarged target in the cache was made from another one than today's."""
    return path.name.startswith("embedded-") and not path.name.startswith(_made_from(target_sha256))


def models() -> list[Path]:
    """GGUF files and folders with ONNX files, by name; what is hidden is unfinished."""
    if not folder().is_dir():
        return []
    return sorted(
        path
        for path in folder().iterdir()
        if not path.name.startswith(".")
        and (path.suffix == ".gguf" or (path.is_dir() and any(path.glob("*.onnx"))))
    )


def _made_from(target_sha256: str) -> str:
    return f"embedded-{target_sha256[:8]}-"
