"""Finds the data that edgespec carries: the embedded pair of models and the presets.

In a wheel they lie inside the package, in a checkout beside it. Nothing here opens a model.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from edgespec.config import nearest
from edgespec.errors import ModelError, UsageError

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class EmbeddedPair:
    """The models that are used when none is named."""

    target: Path
    draft: Path
    target_sha256: str


def embedded_pair(package: Path = _PACKAGE) -> EmbeddedPair:
    """The pair described by `embedded.toml`. Raises ModelError if this installation lacks it."""
    folder = _folder("models", package)
    try:
        manifest = tomllib.loads((folder / "embedded.toml").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"the embedded models are missing from {folder}: install edgespec again, "
            "or name a model with -m"
        ) from error
    target, draft = manifest["target"], manifest["draft"]
    return EmbeddedPair(folder / target["file"], folder / draft["file"], target["sha256"])


def preset_names(package: Path = _PACKAGE) -> list[str]:
    """Names that `--config` understands besides files."""
    return sorted(path.stem for path in _folder("configs", package).glob("*.toml"))


def find_config(name: str, package: Path = _PACKAGE) -> Path:
    """The file that `--config` means: a path, or the name of a preset. Raises UsageError."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    names = preset_names(package)
    if name in names:
        return _folder("configs", package) / f"{name}.toml"
    raise UsageError(
        f"--config {name}: no such file, and no preset of this name{nearest(name, names)} "
        f"(presets: {', '.join(names) or 'none'})"
    )


def _folder(name: str, package: Path) -> Path:
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name
