"""Reaches the tool that enlarges a model of a given format. How to enlarge is the tool's business.

Tools come from the entry point group `edgespec.tools`: no model library is imported before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from edgespec import extras
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.files.unfinished import scratch_folder
from edgespec.ports import Progress
from edgespec.values import EnlargeReport

ENTRY_POINTS = "edgespec.tools"


class Enlarger(Protocol):
    """Protocol of an entry point of the group."""

    def recognises(self, source: Path) -> bool:
        """True if the file or folder looks like a model of this format."""

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        """Write `source` in another quantisation below `folder`. Raises UsageError for `kind`."""

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        """Write `out` from `source`, whole or not at all, with constant memory."""


@contextmanager
def stored_as(
    source: Path, kind: str | None, beside: Path, progress: Progress | None = None
) -> Iterator[Path]:
    """`source` in the quantisation `kind`, in a hidden folder in `beside` that is gone afterwards.

    None leaves it as it is. Raises UsageError for a quantisation that the format does not have.
    """
    if kind is None:
        yield source
        return
    tool = tool_for(source)
    if not beside.is_dir():
        raise UsageError(f"{beside} is no folder: the enlarged model must go into one that exists")
    with scratch_folder(beside) as folder:
        yield tool.quantise(source, folder, kind, progress)


def enlarge(
    source: Path,
    out: Path,
    size_bytes: int,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> EnlargeReport:
    """Write `out`, about `size_bytes` large, with the function of `source`.

    Raises UsageError where `out` or the size cannot be meant, ModelError for `source`, and
    EdgespecError for a full disk or an installation without the tool.
    """
    if out.is_file() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
    return tool_for(source).enlarge(source, out, size_bytes, progress)


def tool_for(source: Path) -> Enlarger:
    """The tool for models of this format. Raises ModelError, and EdgespecError where it is not
    installed."""
    if not source.exists():
        raise ModelError(f"{source} does not exist: check the path of the model to enlarge")
    missing: list[str] = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            tool: Enlarger = entry.load()
        except ImportError as error:
            missing.append(f"{extras.install_command(entry.name)} ({error})")
            continue
        if tool.recognises(source):
            return tool
    if missing:
        raise EdgespecError(f"no installed tool enlarges {source}: {', '.join(missing)}")
    raise ModelError(f"{source} cannot be enlarged: name a GGUF model")
