"""A table in a file, of which single rows are read when they are needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgespec.concurrency.owning import Closeable
from edgespec.errors import WeightReadError
from edgespec.paging.reader import Extent, WatchedFile, read_at


class RowFile(Closeable):
    """An open file with a table of equal rows, which is not read ahead."""

    def __init__(self, path: Path, name: str, extent: Extent, row_bytes: int) -> None:
        """`name` is the table's in messages. Raises WeightReadError."""
        self.row_bytes = row_bytes
        self._name = name
        self._offset = extent.offset
        self._file = WatchedFile(path)
        if sys.platform == "linux":
            place = extent.offset, extent.nbytes
            os.posix_fadvise(self._file.descriptor, *place, os.POSIX_FADV_RANDOM)

    def read(self, row: int, into: memoryview) -> None:
        """Read a row. Raises WeightReadError."""
        file = self._file
        try:
            n = read_at(file.descriptor, into, self._offset + row * self.row_bytes)
        except OSError as error:
            raise WeightReadError(f"reading {file.path} failed: {error.strerror}") from error
        file.check()
        if n != self.row_bytes:
            raise WeightReadError(
                f"{file.path} was cut short: {self._name} ends before its row {row}; copy it again"
            )

    def close(self) -> None:
        self._file.close()
