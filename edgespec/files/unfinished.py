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
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import Cancelled, UsageError

CAN_LOCK = sys.platform != "win32"
"""False on Windows, where nothing is locked and abandoned parts are not deleted."""
SUFFIX = ".edgespec-part"
"""Suffix of unfinished files and folders; their names begin with a dot."""
KEPT_S, _KEPT = 7 * 86400.0, ".kept" + SUFFIX
"""Age until which work that was interrupted can be gone on with, and the suffix of its folder."""
PRIVATE_MODE = 0o600
"""Mode of files with a user's texts: readable only by their owner."""
MIN_AGE_S = 10.0
"""Age from which a part that nobody has locked is abandoned: younger ones may be about to be."""


@contextmanager
def unfinished_file(out: Path, is_private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that replaces `out` when the block ends, and is deleted if the block fails.

    A private one gets mode 0600. Of two processes the last one wins. Raises OSError.
    """
    sweep(out.parent)
    with (
        quick_file(out, PRIVATE_MODE if is_private else 0o666) as create,
        os.fdopen(create(0), "w+b", buffering=1 << 20, closefd=False) as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def quick_file(out: Path, mode: int = PRIVATE_MODE) -> Iterator[Callable[[int], int]]:
    """Yield a function that creates a file with further flags and returns its descriptor.

    The file replaces `out` when the block ends, and is deleted if the block fails. It is not
    flushed: after a power failure it may be incomplete, which its contents must tell. Raises
    OSError.
    """
    part = _random_part(out.parent)
    opened: list[int] = []

    def create(flags: int) -> int:
        opened.append(_open(part, os.O_RDWR | os.O_CREAT | flags, mode))
        _lock(opened[-1])
        return opened[-1]

    try:
        yield create
        if not CAN_LOCK:  # an open file can neither be moved nor deleted
            os.close(opened.pop())
        part.replace(out)
    except BaseException:
        while opened and not CAN_LOCK:
            os.close(opened.pop())
        part.unlink(missing_ok=True)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def scratch_folder(beside: Path, kept_as: str = "") -> Iterator[Path]:
    """Yield a hidden folder in `beside`, deleted when the block ends.

    One that is `kept_as` a name stays for KEPT_S where the process is killed or interrupted, and is
    yielded again. Raises UsageError while another process has it.
    """
    sweep(beside)
    part = beside / f".{kept_as}{_KEPT}" if kept_as else _random_part(beside)
    part.mkdir(exist_ok=bool(kept_as))
    descriptor = _open(part, os.O_RDONLY) if CAN_LOCK else None
    try:
        if descriptor is not None:
            claim(descriptor, part)
        try:
            yield part
        except BaseException as error:
            if not (kept_as and isinstance(error, KeyboardInterrupt | Cancelled)):
                shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(part, ignore_errors=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def claim(descriptor: int, out: Path) -> None:
    """Lock the open file `out` until its descriptor is closed. Raises UsageError while another
    process holds the lock, or if one has just removed the file."""
    with suppress(FileNotFoundError):
        if _lock(descriptor) is not False and os.path.samestat(os.fstat(descriptor), out.stat()):
            return
    raise UsageError(
        f"{out} is being written by another process: wait for it, or name another place"
    )


def sweep(folder: Path) -> None:
    """Delete unfinished files and folders in `folder` whose processes have ended."""
    for part in folder.glob(f".*{SUFFIX}") if CAN_LOCK else ():
        with suppress(OSError):
            descriptor = _open(part, os.O_RDONLY)
            try:
                age_s = time.time() - os.fstat(descriptor).st_mtime
                min_age_s = KEPT_S if part.name.endswith(_KEPT) else MIN_AGE_S
                if age_s > min_age_s and _lock(descriptor):
                    _remove(part)
            finally:
                os.close(descriptor)


def _random_part(beside: Path) -> Path:
    return beside / f".{secrets.token_hex(8)}{SUFFIX}"


def _lock(descriptor: int) -> bool | None:
    """Lock the file: True if that succeeds, False if another process holds the lock, and None on
    file systems without locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open without following links or blocking, because other users can guess the name."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, mode)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
