"""An append-only file of lines, which a later process can continue.

Lines are written whole; the torn last line of a killed process is cut off. Knows nothing about the
meaning of lines.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from edgespec.concurrency.owning import Closeable
from edgespec.files.unfinished import claim

SYNC_S = 5.0
"""Seconds between two fsyncs: a crash of the machine may lose the lines written in between."""


class LineLog(Closeable):
    """An append-only log of lines: a file, or a pipe, which has no earlier lines."""

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over `descriptor`. Use `at` for a path, and `stdout`."""
        self._descriptor = descriptor
        self._clock = clock
        self._synced_s = clock()
        self._end = 0
        """Bytes of whole lines."""
        self.torn = b""
        """The last line if `lines` found it without a line end."""
        self._is_file = False
        self._made: Path | None = None
        """The path, if this log created its file."""

    @classmethod
    def at(cls, path: Path) -> Self:
        """The log at `path`, created if missing.

        Raises UsageError while another process writes it, and OSError.
        """
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            log = cls(descriptor)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                claim(descriptor, path)
                log._is_file = True
                log._made = path if is_new else None
            return log
        except BaseException:
            os.close(descriptor)
            raise

    def __exit__(self, *error: object) -> None:
        """Close the log; an error in the block removes a file that was created for no line."""
        if error[0] is not None and self._made is not None and not self._end:
            with suppress(OSError):
                self._made.unlink()
        self.close()

    @classmethod
    def stdout(cls) -> Self:
        """A log on standard output; earlier lines are not read."""
        sys.stdout.flush()
        return cls(os.dup(sys.stdout.fileno()))

    def lines(self, max_bytes: int) -> Iterator[bytes]:
        """The existing non-blank lines, cut after `max_bytes`.

        Afterwards `torn` is the last line if it has no line end. Raises OSError.
        """
        if not self._is_file:
            return
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            while line := file.readline(max_bytes):
                if not line.endswith(b"\n") and len(line) < max_bytes:
                    self.torn = line
                    return
                self._end += len(line)
                if line.strip():
                    yield line

    def cut_torn_line(self) -> None:
        """Remove everything after the whole lines that `lines` has yielded. Raises OSError."""
        if self._is_file:
            os.ftruncate(self._descriptor, self._end)
            os.lseek(self._descriptor, self._end, os.SEEK_SET)

    def append(self, line: bytes) -> None:
        """Write `line` and a line end. Raises OSError and then leaves nothing of it in the file."""
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                self.cut_torn_line()
            raise
        self._end += len(line) + 1
        if self._clock() - self._synced_s >= SYNC_S:
            self._sync()

    def close(self) -> None:
        if self._descriptor < 0:
            return
        try:
            self._sync()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _sync(self) -> None:
        """Flush the file to the disk."""
        self._synced_s = self._clock()
        if self._is_file:
            os.fsync(self._descriptor)
