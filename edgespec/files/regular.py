"""Opens what must be a regular file, and reads a small one whole, up to a limit.

A FIFO, a socket or a device in the place of a file would keep whoever opens or reads it waiting,
in a thread that hears no Ctrl-C. Knows nothing of what files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MIB = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def open_regular(path: Path, buffering: int = -1) -> BinaryIO:
    """The file at `path`, for reading bytes. Raises OSError, also where it is no regular file."""
    _check(path, path.stat().st_mode)
    file: BinaryIO = open(path, "rb", buffering, opener=_open_without_waiting)  # noqa: SIM115
    try:
        # What was looked at may have been exchanged since.
        _check(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All that a regular file holds. Raises OSError, also where that is more than `most_bytes`."""
    with open_regular(path) as file:
        return read_at_most(file, path, most_bytes)


def read_at_most(file: BinaryIO, name: object, most_bytes: int) -> bytes:
    """What `file` holds from here on, pipes included. Raises OSError beyond `most_bytes`."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it holds more than {most_bytes // _MIB} MiB", str(name))
    return data


def special_kind(mode: int) -> str | None:
    """What a path with this `st_mode` is in words; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _check(path: Path, mode: int) -> None:
    kind = special_kind(mode)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
