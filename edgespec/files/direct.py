"""Reads and writes whole files past the page cache, through one reused buffer.

Where a file system has no direct reads or writes, the page cache is used.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = max(4096, mmap.PAGESIZE)
"""Alignment of direct reads and writes."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
"""Flags against links, and against waiting for a FIFO."""
Open = Callable[[int], int]
"""Opens a file with further flags; returns its descriptor."""


class DirectBuffer:
    """An aligned buffer that grows to the largest file so far."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, BLOCK_BYTES)

    def room(self, n_bytes: int) -> memoryview:
        """The buffer, with at least `n_bytes`; earlier views must not be used any more."""
        if n_bytes > len(self._map):
            self._map = mmap.mmap(-1, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        return memoryview(self._map)

    def read(self, path: Path, max_bytes: int) -> memoryview:
        """The contents of a file. Raises OSError, also for a file of more than `max_bytes`."""
        descriptor = _opened(lambda flags: os.open(path, os.O_RDONLY | _SAFE | flags))
        try:
            size = os.fstat(descriptor).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"it has {size:,} bytes", str(path))
            buffer = self.room(size + 1)
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                n_read = 0
                while n_read < size and (n_more := file.readinto(buffer[n_read:])):
                    n_read += n_more
            return buffer[:n_read]
        finally:
            os.close(descriptor)

    def write(self, open_file: Open, n_bytes: int) -> None:
        """Write the first `n_bytes` of the buffer, rounded up to whole blocks, to a new file, which
        the caller closes. Raises OSError."""
        size = -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES
        content = memoryview(self._map)[:size]
        descriptor = _opened(open_file)
        while content:
            content = content[os.write(descriptor, content) :]


def _opened(open_file: Open) -> int:
    """A descriptor for direct reads or writes, or for others where there are none."""
    try:
        return open_file(_DIRECT)
    except OSError as error:
        if not _DIRECT or error.errno != errno.EINVAL:
            raise
        return open_file(0)
