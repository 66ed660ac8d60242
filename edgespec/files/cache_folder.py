"""Where edgespec keeps what can be made again, and how the models there are named.

Knows folders and names; neither makes models nor opens them.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.errors import EdgespecError


def folder() -> Path:
    """Where the XDG base directory specification wants it; it need not exist yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise EdgespecError(
                "there is no home folder to keep the cache in: let XDG_CACHE_HOME name a folder"
            ) from error
    return base / "edgespec"


def make_folder() -> Path:
    """The folder, which exists from now on. Raises EdgespecError where it cannot."""
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
    """The place of the embedded target, enlarged to about `size_bytes`."""
    return folder() / f"{_made_from(target_sha256)}{size_bytes >> 20}MiB.gguf"


def is_outdated(path: Path, target_sha256: str) -> bool:
    """Whether an enlarged target in the cache was made from another one than today's."""
    return path.name.startswith("embedded-") and not path.name.startswith(_made_from(target_sha256))


def calibrations() -> Path:
    """What was learnt of pairs of models: a small file each."""
    return folder() / "calibrations"


def tuned() -> Path:
    """Presets that `edgespec tune` found, for devices, pairs and budgets: a small file each."""
    return folder() / "tuned"


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
