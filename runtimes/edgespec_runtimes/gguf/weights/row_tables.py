"""Tables that are only looked up, such as embeddings: only the rows in use are in memory.

Knows a lookup's node in the graph and the table's position in its file, but no other weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from edgespec.concurrency.owning import close_all
from edgespec.paging.reader import BLOCK_BYTES, AlignedMemory, Extent
from edgespec_runtimes.gguf.file.header import TensorEntry
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.kit.row_file import RowFile

LOOKUP = "GET_ROWS"
_INPUT_OPS = ("NONE", "VIEW", "RESHAPE")


def n_rows_named(index: int) -> int:
    """Number of rows in an index, the second operand of a lookup; 0 if unknown before computing."""
    address = index
    while address:
        tensor = abi.GgmlTensor.from_address(address)
        if tensor.type != KINDS["I32"].code or abi.op_name(tensor.op) not in _INPUT_OPS:
            return 0
        address = tensor.view_src
    return prod(abi.GgmlTensor.from_address(index).ne) if index else 0


def bytes_for(entry: TensorEntry, n_rows: int) -> int:
    """Most memory of `n_rows` rows, each of which may touch one additional page."""
    row_bytes = entry.nbytes // entry.shape[1]
    return min(n_rows * (row_bytes + 2 * BLOCK_BYTES), entry.nbytes + BLOCK_BYTES)


class RowTable:
    """A table's address range, in which only rows that were looked up are resident."""

    def __init__(self, entry: TensorEntry, path: Path, n_rows_at_once: int) -> None:
        self._entry = entry
        self._row_bytes = entry.nbytes // entry.shape[1]
        self._max_bytes = bytes_for(entry, n_rows_at_once)
        self._memory = AlignedMemory(entry.nbytes, sparse=True)
        self._present: set[int] = set()
        extent = Extent(entry.file_index, entry.offset, entry.nbytes)
        self._file = RowFile(path, entry.name, extent, self._row_bytes)

    @property
    def address(self) -> int:
        return self._memory.address

    def address_of(self, row: int) -> int:
        return self.address + row * self._row_bytes

    def fetch(self, rows: Iterable[int]) -> None:
        """Make `rows` readable. Raises WeightReadError."""
        wanted = set(rows)
        missing = wanted - self._present
        if not missing:
            return
        if bytes_for(self._entry, len(self._present) + len(missing)) > self._max_bytes:
            self._memory.forget()
            self._present.clear()
            missing = wanted
        for row in sorted(missing):
            self._file.read(row, self._memory.view(row * self._row_bytes, self._row_bytes))
            self._present.add(row)

    def close(self) -> None:
        close_all(self._file.close, self._memory.close)
