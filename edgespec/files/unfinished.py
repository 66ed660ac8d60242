"""Files and folders that appear when they are complete, and what killed processes left of theirs.

Until then they lie hidden beside their place, locked for as long as their process lives: one that
is not locked is nobody's any more. Knows nothing of what is written.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing that others left is deleted
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".edgespec-part"
"""Of everything unfinished; its name begins with a dot."""
PRIVATE_MODE = 0o600
"""Mode of files that hold what somebody wrote: for their owner alone."""
SWEEP_S = 0.25
"""A sweep holds a lock for less; whoever writes holds it for longer."""


@contextmanager
def unfinished_file(out: Path, alone: bool = True, is_private: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `out` when the block ends, and is gone if it fails.
    A private one is for its owner alone (mode 0600).

    Raises UsageError while another process writes `out`, unless neither wants to be `alone`: then
    the last one's stays. Raises OSError.
    """
    sweep(out.parent)
    part = _place_for(out) if alone else _own_place(out.parent)
    mode = PRIVATE_MODE if is_private else 0o666
    descriptor = _claim(partial(_open, part, os.O_RDWR | os.O_CREAT, mode), part, out)
    with os.fdopen(descriptor, "w+b", buffering=1 << 20) as file:
        try:
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(file.fileno())
            _close_where_nothing_open_can_move(file)
            part.replace(out)
        except BaseException:
            _close_where_nothing_open_can_move(file)
            part.unlink(missing_ok=True)
            raise


@contextmanager
def unfinished_folder(out: Path) -> Iterator[Path]:
    """An empty folder to fill, beside `out`; it is gone when the block ends, so that what is
    complete has to be moved before. Raises as `unfinished_file` does.
    """
    sweep(out.parent)
    with _claimed_folder(_place_for(out), out) as part:
        for left in part.iterdir():
            _remove(left)
        yield part


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A hidden folder in `beside` under a name of its own, gone when the block ends."""
    sweep(beside)
    part = _own_place(beside)
    with _claimed_folder(part, part):
        yield part


def sweep(folder: Path) -> None:
    """Delete what processes that live no more left unfinished in `folder`."""
    if fcntl is None:
        return
    for part in folder.glob(f".*{SUFFIX}"):
        with suppress(OSError):
            descriptor = _open(part, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, part):
                    _remove(part)
            finally:
                os.close(descriptor)


def _place_for(out: Path) -> Path:
    """One for each `out`, where two processes that write it meet."""
    return out.with_name(f".{out.name}{SUFFIX}")


def _own_place(beside: Path) -> Path:
    return beside / f".{secrets.token_hex(8)}{SUFFIX}"


@contextmanager
def _claimed_folder(part: Path, out: Path) -> Iterator[Path]:
    def make_and_open() -> int:
        part.mkdir(exist_ok=True)
        return _open(part, os.O_RDONLY)

    if fcntl is None:
        part.mkdir(exist_ok=True)
        descriptor = None
    else:
        descriptor = _claim(make_and_open, part, out)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _claim(open_part: Callable[[], int], part: Path, out: Path) -> int:
    """A descriptor of `part` that holds its lock. Raises UsageError where another one does, and
    OSError where nothing can be made.

    For a moment a sweep holds what was made and not locked yet, or deletes it: that is waited for.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        is_late = time.monotonic() > deadline
        try:
            descriptor = open_part()
        except (IsADirectoryError, FileExistsError) as error:  # as a folder, or as a file
            raise _taken(out) from error
        except FileNotFoundError:  # swept away before it could be locked, or no place for files
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
    """Raises BlockingIOError where another one holds it; some file systems have no locks."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    """Follows no link and waits for nobody: the name is known to everyone."""
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


def _close_where_nothing_open_can_move(file: BinaryIO) -> None:
    if fcntl is None:
        file.close()
