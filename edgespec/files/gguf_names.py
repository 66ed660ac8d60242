"""Tells from names which GGUF files of a folder or a repository are models, and which belong
together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgespec.errors import UsageError

SUFFIX = ".gguf"
PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
"""Name of one file of a split model."""
_HEAD = re.compile(
    r"(?:.*/)?(?:(?P<kind>mtp|eagle\d*|dflash\d*|dspark)[-_.]|mtp/gemma)", re.IGNORECASE
)
"""Drafting heads, which lie beside the model that they guess for."""
RUN_HEADS = ("mtp", "dflash", "eagle3", "dspark")
"""Kinds of heads in files of their own that are run, in the order in which they are tried."""
_NO_MODEL = re.compile(r"(?:.*[-._/])?(?:mmproj|imatrix)", re.IGNORECASE)
"""Image encoders, and statistics for quantising."""


def models(names: Iterable[str], heads: bool = False) -> dict[str, list[str]]:
    """The files of each model among `names`, in order, by its name without suffix and part; those
    of drafting heads if `heads`."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        is_wanted = not _NO_MODEL.match(name) and bool(_HEAD.match(name)) == heads
        if name.lower().endswith(SUFFIX) and is_wanted:
            part = PART.fullmatch(name)
            found.setdefault(part["name"] if part else name[: -len(SUFFIX)], []).append(name)
    return dict(sorted(found.items()))


def heads(sizes: Mapping[str, int]) -> list[str]:
    """The drafting heads among files of these sizes: MTP, DFlash, EAGLE-3, DSpark, others; small
    ones first."""
    names = [files[0] for files in models(sizes, heads=True).values()]
    order = {kind: place for place, kind in enumerate(RUN_HEADS)}
    return sorted(names, key=lambda n: (order.get(kind_of_head(n), len(order)), sizes[n], n))


def kind_of_head(name: str) -> str:
    """Kind of a drafting head by the name of its file: `eagle3`, `dflash` also of DFlash2, ..., and
    `assistant` of Gemma's, whose names begin with `mtp`, too."""
    match = _HEAD.match(name)
    kind = ((match and match["kind"]) or "mtp").lower()
    if kind == "mtp" and "gemma" in name.lower():
        return "assistant"
    return kind if kind in RUN_HEADS else kind.rstrip("0123456789")


def in_folder(path: Path) -> Path:
    """The file of the only GGUF model in a folder; any other path as it is.

    Raises UsageError for a folder with several.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - no error for a name that is too long
        return path
    names = [file.name for file in path.iterdir() if not file.name.startswith(".")]
    found = {} if any(name.endswith(".onnx") for name in names) else models(names)
    if len(found) > 1:
        files = ", ".join(files[0] for files in found.values())
        raise UsageError(f"{path} holds several models: name one of {files}")
    return path / next(iter(found.values()))[0] if found else path
