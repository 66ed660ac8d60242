"""The disk that a model is written to: its free space, and its failures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import EdgespecError


def check_room(out: Path, size_bytes: int) -> None:
    """Raise EdgespecError where the disk has no room for `out`."""
    free = shutil.disk_usage(out.parent).free
    if free < size_bytes:
        raise EdgespecError(
            f"{out} needs {mib(size_bytes)}, {mib(free)} are free there: choose a smaller size "
            "or another disk"
        )


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise EdgespecError where writing `out` fails with OSError in the block."""
    try:
        yield
    except OSError as error:
        raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"
