"""The files of a model, for sizes and for dropping them from the page cache."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from edgespec import registry
from edgespec.files import cache_folder, gguf_names


def files_of(model: Path) -> list[Path]:
    """The file itself, all parts of a split GGUF file, or an ONNX model's graph and weights.

    Raises ModelError for a folder without a model, and for a damaged ONNX model.
    """
    if model.is_dir() or model.suffix == ".onnx":
        return list(registry.describe(model).files)
    part = gguf_names.PART.fullmatch(model.name)
    if part is None:
        return [model]
    return sorted(model.parent.glob(f"{glob.escape(part['name'])}-*-of-{part['count']}.gguf"))


def copies() -> list[Path]:
    """Converted copies of models that runtimes keep in the cache and may read instead."""
    others = {cache_folder.calibrations(), cache_folder.drafts()}
    inside = cache_folder.folder().glob("*/[!.]*")
    return sorted(path for path in inside if path.is_file() and path.parent not in others)


def distinct_names(models: Sequence[Path]) -> list[str]:
    """File names without suffixes, numbered where they are not unique."""
    names = [model.name if model.is_dir() else model.stem for model in models]
    return [
        f"{name}#{names[: at + 1].count(name)}" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def size_of(model: Path) -> int:
    """Bytes of all files of a model."""
    return sum(path.stat().st_size for path in files_of(model))


def largest_of(model: Path) -> Path:
    """The largest file of a model."""
    return max(files_of(model), key=lambda path: path.stat().st_size)
