"""Writes files atomically, and deletes the unfinished files of killed processes.

An unfinished file or folder is a hidden part beside its final path, locked as long as its process
lives: an unlocked part is abandoned. Knows nothing about contents.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import UsageError

CAN_LOCK = sys.platform != "win32"
"""False on Windows, where nothing is locked and abandoned parts are not deleted."""
SUFFIX = ".edgespec-part"
"""Suffix of unfinished files and folders; their names begin with a dot."""
PRIVATE_MODE = 0o600
"""Mode of files with a user's texts: readable only by their owner."""
SWEEP_S = 0.25
"""Longest time that a sweep holds a lock; a process that writes holds it longer."""


@contextmanager
def unfinished_file(out: Path, alone: bool = True, is_private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that replaces `out` when the block ends, and is deleted if the block fails.

    A private one gets mode 0600. Raises UsageError while another process writes `out`, unless both
    pass `alone=False`: then the last one wins. Raises OSError.
    """
    sweep(out.parent)
    part = _part_of(out) if alone else _random_part(out.parent)
    mode = PRIVATE_MODE if is_private else 0o666
    descriptor = _claim(partial(_open, part, os.O_RDWR | os.O_CREAT, mode), part, out)
    with os.fdopen(descriptor, "w+b", buffering=1 << 20) as file:
        try:
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(file.fileno())
            _close_on_windows(file)
            part.replace(out)
        except BaseException:
            _close_on_windows(file)
            part.unlink(missing_ok=True)
            raise


@contextmanager
def quick_file(out: Path) -> Iterator[Callable[[int], int]]:
    """Yield a function that creates a private file with further flags and returns its descriptor.

    The file replaces `out` when the block ends, and is deleted if the block fails. It is not
    flushed: after a power failure it may be incomplete, which its contents must tell. Raises
    OSError.
    """
    part = _random_part(out.parent)
    opened: list[int] = []

    def create(flags: int) -> int:
        opened.append(_open(part, os.O_WRONLY | os.O_CREAT | flags, PRIVATE_MODE))
        with suppress(BlockingIOError):
            _lock(opened[-1])
        return opened[-1]

    try:
        yield create
        if not CAN_LOCK:
            os.close(opened.pop())
        part.replace(out)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Yield a hidden folder in `beside` with a random name, deleted when the block ends."""
    sweep(beside)
    part = _random_part(beside)

    def make_and_open() -> int:
        part.mkdir(exist_ok=True)
        return _open(part, os.O_RDONLY)

    if not CAN_LOCK:
        part.mkdir()
        descriptor = None
    else:
        descriptor = _claim(make_and_open, part, part)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def claim(descriptor: int, out: Path) -> None:
    """Lock the open file `out` until its descriptor is closed. Raises UsageError while another
    process holds the lock, or if one has just removed the file."""
    try:
        _lock(descriptor)
    except BlockingIOError:
        raise _taken(out) from None
    if not _is_at(descriptor, out):
        raise _taken(out)


def sweep(folder: Path) -> None:
    """Delete unfinished files and folders in `folder` whose processes have ended."""
    for part in folder.glob(f".*{SUFFIX}") if CAN_LOCK else ():
        with suppress(OSError):
            descriptor = _open(part, os.O_RDONLY)
            try:
                _lock_or_fail(descriptor)
                if _is_at(descriptor, part):
                    _remove(part)
            finally:
                os.close(descriptor)


def _part_of(out: Path) -> Path:
    """The unfinished file of `out`, the same in all processes, so that only one can lock it."""
    return out.with_name(f".{out.name}{SUFFIX}")


def _random_part(beside: Path) -> Path:
    return beside / f".{secrets.token_hex(8)}{SUFFIX}"


def _claim(open_part: Callable[[], int], part: Path, out: Path) -> int:
    """Open and lock `part`; returns its descriptor.

    A sweep may lock or delete a part between its creation and its lock; then this tries again.
    Raises UsageError if another process holds the lock, and OSError if the part cannot be created.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        is_late = time.monotonic() > deadline
        try:
            descriptor = open_part()
        except (IsADirectoryError, FileExistsError) as error:  # the part is of the other kind
            raise _taken(out) from error
        except FileNotFoundError:  # a sweep deleted it before it was locked, or there is no folder
            if is_late or not out.parent.is_dir():
                raise
        else:
            with suppress(BlockingIOError):
                _lock(descriptor)
                if _is_at(descriptor, part):
                    return descriptor
            os.close(descriptor)
            if is_late:
                raise _taken(out)
        time.sleep(0.002)


def _taken(out: Path) -> UsageError:
    return UsageError(
        f"{out} is being written by another process: wait for it, or name another place"
    )


def _lock(descriptor: int) -> None:
    """Lock the file; a no-op on file systems without locks.

    Raises BlockingIOError if another process holds the lock.
    """
    try:
        _lock_or_fail(descriptor)
    except BlockingIOError:
        raise
    except OSError:
        return


def _lock_or_fail(descriptor: int) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open without following links or blocking, because other users can guess the name."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, mode)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _close_on_windows(file: BinaryIO) -> None:
    """Close the file on Windows, which can neither move nor delete an open one."""
    if sys.platform == "win32":
        file.close()
