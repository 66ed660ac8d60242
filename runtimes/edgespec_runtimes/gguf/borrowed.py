"""Weights of the target's file that a head uses: embeddings, output matrix, prediction layer (MTP).

They are copied to memory of the head, because those of a paged target move. The tensors belong to a
model opened without weights, and point to the copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from edgespec.concurrency.owning import Closeable
from edgespec.errors import Cancelled
from edgespec.memory.budget import MemoryRow
from edgespec.paging.pager import PinnedSegments
from edgespec.paging.reader import DirectReader
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.heads import HeadShape
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.weights import row_tables
from edgespec_runtimes.gguf.weights.row_tables import RowTable
from edgespec_runtimes.gguf.weights.segments import TRACED_SHAPE, segment_of


def copied_rows(shape: HeadShape, owner: str, n_rows: int) -> list[MemoryRow]:
    """Plan rows of the copied matrices, for passes of up to `n_rows` rows."""
    found = []
    if shape.output is not None:
        nbytes = segment_of([shape.output]).slot_bytes
        found.append(MemoryRow(owner, "copy of the target's output", nbytes))
    if (looked_up := _looked_up(shape)) is not None:
        nbytes = row_tables.bytes_for(looked_up, n_rows)
        found.append(MemoryRow(owner, "rows of the target's embeddings", nbytes))
    return found


class CopiedWeights(Closeable):
    """Copies of the target's weights: embeddings by row when needed, all others whole."""

    def __init__(
        self, shape: HeadShape, target: GgufFile, model: loading.Model | None = None
    ) -> None:
        """`model` has the tensors that point to the copies; the caller closes it. Without one, the
        head is in a file of its own: its graph takes them from a `context` of the target, which is
        opened without weights. Reads nothing before `fill`."""
        self._shape, self._target = shape, target
        self._copies = PinnedSegments()
        self._table: RowTable | None = None
        self._stop = AbortFlag()
        self.context: Any = None
        self._owned = ExitStack()
        self._owned.callback(self._copies.close)
        if model is None:
            model = loading.load_sizes_only(target.path, no_texts=target)
            self._owned.callback(model.close)
            try:
                self.context = contexts.new_context(model, TRACED_SHAPE, None, self._stop)
            except BaseException:
                self.close()
                raise
            self._owned.callback(lib.llama_free, self.context)
        self._model = model

    def fill(self, n_rows: int, stop: AbortFlag) -> None:
        """Read the whole matrices and reserve memory for the embeddings of `n_rows` tokens.

        Raises WeightReadError, and Cancelled once `stop` is set.
        """
        shape = self._shape
        addresses = self._read(shape.own, stop) if shape.own else {}
        if shape.output is not None:
            addresses |= self._read([shape.output], stop)
        if (looked_up := _looked_up(shape)) is not None:
            path = self._target.paths[looked_up.file_index]
            self._table = RowTable(looked_up, path, n_rows)
            self._owned.callback(self._table.close)
            addresses[looked_up.name] = self._table.address
        if stop.is_set:
            raise Cancelled("loading was cancelled")
        for name, tensor in self._model.tensors():
            if name in addresses:
                abi.GgmlTensor.from_address(tensor).data = addresses[name]

    def fetch(self, tokens: Iterable[int]) -> None:
        """Read the embeddings of `tokens` if needed. Raises WeightReadError."""
        if self._table is not None:
            self._table.fetch(tokens)

    def close(self) -> None:
        self._owned.close()

    def _read(self, entries: Sequence[TensorEntry], stop: AbortFlag) -> dict[str, int]:
        """Read tensors into one block of memory; returns addresses by name."""
        segment = segment_of(entries)
        with DirectReader(self._target.paths) as reader:
            base = self._copies.load(segment, reader, lambda: stop.is_set)
        return {
            entry.name: base + segment.locate(entry.file_index, entry.offset) for entry in entries
        }


def _looked_up(shape: HeadShape) -> TensorEntry | None:
    """The embeddings tensor; None if it is tied to the output matrix."""
    return None if shape.embeddings == shape.output else shape.embeddings
