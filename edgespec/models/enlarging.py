"""Modifies model files: quantises, removes or adds layers, adapts weights.

The tool for the format comes from the entry point group `edgespec.tools`; no model library is
imported before.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from edgespec import extras
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.files.training_texts import TrainingText
from edgespec.files.unfinished import scratch_folder
from edgespec.ports import Progress
from edgespec.values import EnlargeReport

GROUP, NAME = "edgespec.tools", "gguf"


class ModelTool(Protocol):
    """Protocol of the entry point. Its output files are written atomically."""

    def recognises(self, source: Path) -> bool:
        """True if the file or folder looks like a model in the tool's format."""

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        """Write `source` in quantisation `kind` to `folder`; returns the path. Raises UsageError if
        `kind` is unknown."""

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        """Write `out`, about `size_bytes` large, which computes the same function as `source`."""

    def is_head(self, draft: Path) -> bool:
        """True if the draft is a head, which reads its target's hidden states."""

    def fit_head(self, head: Path, source: Path, enlarged: Path, out: Path) -> None:
        """Write `out`, the head of `source` adapted to the model enlarged from `source`."""

    def n_layers(self, source: Path) -> int: ...

    def weight_bytes(self, source: Path, layers: Sequence[int]) -> int:
        """Bytes of `layers` and of all tensors outside layers."""

    def subset(
        self, source: Path, out: Path, layers: Sequence[int], progress: Progress | None = None
    ) -> None:
        """Write `out` with `layers` of `source`, which are ascending."""

    def check_adaptable(self, source: Path) -> None:
        """Raise ModelError for a model that `adapt` cannot train."""

    def adapt(
        self,
        source: Path,
        out: Path,
        name: str,
        texts: Sequence[TrainingText],
        n_threads: int,
        report: Callable[[float], None],
    ) -> float:
        """Train `source` on `texts`, write it to `out` under `name`, and return the final loss.

        Changes settings of the process. `report` is called with the share that is done.
        """


@contextmanager
def quantised(
    source: Path, kind: str | None, beside: Path, progress: Progress | None = None
) -> Iterator[Path]:
    """Yield `source` in the quantisation `kind`, from a hidden temporary folder in `beside`.

    With None it is `source` itself. Raises UsageError for an unknown quantisation.
    """
    if kind is None:
        yield source
        return
    tool = _tool_for(source)
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
    """Write `out`, about `size_bytes` large, which computes the same function as `source`.

    Raises UsageError if `out` or the size is invalid, ModelError if `source` is, and EdgespecError
    for a full disk or if the tool is not installed.
    """
    if out.is_file() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
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


def load_tool() -> ModelTool:
    """Import the tool. Raises EdgespecError if it is not installed."""
    try:
        (entry,) = entry_points(group=GROUP, name=NAME)
        tool: ModelTool = entry.load()
    except (ImportError, ValueError) as error:
        raise EdgespecError(
            f"changing a model's file needs {extras.install_command(NAME)} ({error})"
        ) from error
    return tool


def _tool_for(source: Path) -> ModelTool:
    if not source.exists():
        raise ModelError(f"{source} does not exist: check the path of the model to enlarge")
    tool = load_tool()
    if not tool.recognises(source):
        raise ModelError(f"{source} cannot be enlarged: name a GGUF model")
    return tool
