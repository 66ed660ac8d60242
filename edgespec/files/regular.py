"""Opens regular files only, and reads small ones whole, up to a limit.

Opening or reading a FIFO, a socket or a device could block for ever in a thread that Ctrl-C does
not reach. Knows nothing about the contents of files.
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
    """The file at `path`, opened for reading bytes. Raises OSError if it is not a regular file."""
    _check(path, path.stat().st_mode)
    file: BinaryIO = open(path, "rb", buffering, opener=_open_without_waiting)  # noqa: SIM115
    try:
        # the path may have been replaced between the two checks
        _check(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Contents of a regular file. Raises OSError if it is larger than `max_bytes`."""
    with open_regular(path) as file:
        return read_at_most(file, path, max_bytes)


def read_at_most(file: BinaryIO, name: object, max_bytes: int) -> bytes:
    """The rest of `file`, which may be a pipe. Raises OSError if it exceeds `max_bytes`."""
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it holds more than {max_bytes // _MIB} MiB", str(name))
    return data


def special_kind(mode: int) -> str | None:
    """Kind of a file with this `st_mode` for messages; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _check(path: Path, mode: int) -> None:
    kind = special_kind(mode)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
