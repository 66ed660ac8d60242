"""Matrices that a head computes with and its file has not: its target's embeddings and output.

llama.cpp's graph of a head takes them from a context of the target. Here this is a context of sizes
alone, whose tensors point to memory of the head's own: a paged target has its matrices in no
place that stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.memory.budget import MemoryRow
from edgespec.paging.mirror import open_reader
from edgespec.paging.pager import PinnedSegments
from edgespec.paging.reader import Extent, Segment
from edgespec_runtimes.gguf import row_tables
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.heads import HeadShape
from edgespec_runtimes.gguf.llama import abi, contexts, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.row_tables import RowTable

_SHAPE = contexts.ContextShape(n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)


class BorrowedMatrices(Closeable):
    """The output is read whole, embeddings by the rows that a pass names."""

    def __init__(self, shape: HeadShape, target: GgufFile) -> None:
        """Nothing is read before `fill`."""
        self._shape = shape
        self._target = target
        self._output = PinnedSegments()
        self._table: RowTable | None = None
        self._stop = AbortFlag()
        self._model = loading.load_sizes_only(target.path)
        self.context: Any = None
        """For llama.cpp, as the other context of the head's."""
        try:
            self.context = contexts.new_context(self._model, _SHAPE, None, self._stop)
        except BaseException:
            self.close()
            raise

    def rows(self, owner: str, n_rows: int) -> list[MemoryRow]:
        """Memory that they take where a pass has up to `n_rows`."""
        found = []
        if self._segment is not None:
            found.append(MemoryRow(owner, "copy of the target's output", self._segment.slot_bytes))
        if self._looked_up is not None:
            nbytes = row_tables.bytes_for(self._looked_up, n_rows)
            found.append(MemoryRow(owner, "rows of the target's embeddings", nbytes))
        return found

    def fill(self, n_rows: int, stop: AbortFlag) -> None:
        """Read the output, and make room for the embeddings of `n_rows` tokens. Raises
        WeightReadError."""
        if self._segment is not None:
            reader = open_reader(self._target.paths)
            try:
                base = self._output.load(self._segment, reader, stop.is_set)
            finally:
                reader.close()
            (extent,) = self._segment.extents
            assert self._shape.output is not None
            offset = self._segment.locate(extent.file_index, extent.offset)
            self._point(self._shape.output, base + offset)
        if self._looked_up is not None:
            path = self._target.paths[self._looked_up.file_index]
            self._table = RowTable(self._looked_up, path, n_rows)
            self._point(self._looked_up, self._table.address)

    def fetch(self, tokens: Iterable[int]) -> None:
        """Have the embeddings of `tokens` in memory. Raises WeightReadError."""
        if self._table is not None:
            self._table.fetch(tokens)

    def close(self) -> None:
        context, self.context = self.context, None
        table, self._table = self._table, None
        close_all(
            lambda: contexts.free(context),
            self._model.close,
            self._output.close,
            *((table.close,) if table else ()),
        )

    @property
    def _segment(self) -> Segment | None:
        entry = self._shape.output
        if entry is None:
            return None
        return Segment(entry.name, [Extent(entry.file_index, entry.offset, entry.nbytes)])

    @property
    def _looked_up(self) -> TensorEntry | None:
        """The embeddings, unless they are there as the output."""
        return None if self._shape.embeddings == self._shape.output else self._shape.embeddings

    def _point(self, entry: TensorEntry, address: int) -> None:
        for name, place in self._model.tensors():
            if name == entry.name:
                abi.GgmlTensor.from_address(place).data = address
