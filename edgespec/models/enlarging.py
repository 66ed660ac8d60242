"""Changes models as files: other quantisations, fewer layers, more layers, other weights.

The tool that knows the format comes from the entry point group `edgespec.tools`: no model library
is imported before.
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
    """Protocol of the entry point. What it writes appears whole or not at all."""

    def recognises(self, source: Path) -> bool:
        """True if the file or folder looks like a model of its format."""

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        """Write `source` in another quantisation below `folder`. Raises UsageError for `kind`."""

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        """Write `out`, about `size_bytes` large, with the function of `source`."""

    def is_head(self, draft: Path) -> bool:
        """True for a draft that reads its target's hidden states."""

    def fit_head(self, head: Path, source: Path, enlarged: Path, out: Path) -> None:
        """Write `out`: the head of `source`, for the model that was enlarged from it."""

    def n_layers(self, source: Path) -> int: ...

    def weight_bytes(self, source: Path, layers: Sequence[int]) -> int:
        """Bytes of these layers and of all that is in no layer."""

    def subset(
        self, source: Path, out: Path, layers: Sequence[int], progress: Progress | None = None
    ) -> None:
        """Write `out` with these layers of `source`, ascending."""

    def check_adaptable(self, source: Path) -> None:
        """Raise ModelError, by name, for a model that `adapt` cannot train."""

    def adapt(
        self,
        source: Path,
        out: Path,
        name: str,
        texts: Sequence[TrainingText],
        n_threads: int,
        report: Callable[[float], None],
    ) -> float:
        """Write `out`, called `name`: `source` trained on `texts`; the mean loss at the end.

        Changes settings of the process. `report` hears the share that is done.
        """


@contextmanager
def stored_as(
    source: Path, kind: str | None, beside: Path, progress: Progress | None = None
) -> Iterator[Path]:
    """`source` in the quantisation `kind`, in a hidden folder in `beside` that is gone afterwards.

    None leaves it as it is. Raises UsageError for an unknown quantisation.
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
    """Write `out`, about `size_bytes` large, with the function of `source`.

    Raises UsageError where `out` or the size cannot be meant, ModelError for `source`, and
    EdgespecError for a full disk or an installation without the tool.
    """
    if out.is_file() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
    return _tool_for(source).enlarge(source, out, size_bytes, progress)


def fitting_draft(draft: Path, source: Path, enlarged: Path) -> Path:
    """The draft of `source` for what was enlarged from it: a head is written beside `enlarged`,
    once, any other draft guesses for both. Raises ModelError and EdgespecError."""
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
    """Import the tool. Raises EdgespecError where it is not installed."""
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
