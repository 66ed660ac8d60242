"""A table in a file, of which single rows are read when they are needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgespec.concurrency.owning import Closeable
from edgespec.errors import WeightReadError
from edgespec.paging.reader import Extent, FileWatch, read_at


class RowFile(Closeable):
    """An open file with a table of equal rows, which is not read ahead."""

    def __init__(self, path: Path, name: str, extent: Extent, row_bytes: int) -> None:
        """`name` is the table's in messages."""
        self.row_bytes = row_bytes
        self._path = path
        self._name = name
        self._offset = extent.offset
        self._file = os.open(path, os.O_RDONLY)
        self._watch = FileWatch(path, self._file)
        if sys.platform == "linux":
            os.posix_fadvise(self._file, extent.offset, extent.nbytes, os.POSIX_FADV_RANDOM)

    def read(self, row: int, into: memoryview) -> None:
        """Read a row. Raises WeightReadError."""
        try:
            n = read_at(self._file, into, self._offset + row * self.row_bytes)
        except OSError as error:
            raise WeightReadError(f"reading {self._path} failed: {error.strerror}") from error
        self._watch.check(self._file)
        if n != self.row_bytes:
            raise WeightReadError(
                f"{self._path} was cut short: {self._name} ends before its row {row}; copy it again"
            )

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
