"""Memory of a mixture's experts, at addresses that never change.

Every stacked matrix has an address range of its full size, with memory behind it only where an
expert was read. Callers say which slices to free; nothing here knows which are in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.reader import BLOCK_BYTES, AlignedMemory, Run, block_floor


class ExpertMemory(Closeable):
    """The address ranges of all matrices, readable until `close`, whatever they hold."""

    def __init__(self, layers: Sequence[ExpertLayer]) -> None:
        self._layers = layers
        self._ranges: list[list[AlignedMemory]] = []
        try:
            for layer in layers:
                self._ranges.append([])
                for matrix in layer.matrices:
                    first = block_floor(matrix.extent.offset)
                    nbytes = matrix.extent.offset + matrix.extent.nbytes - first
                    self._ranges[-1].append(AlignedMemory(nbytes, sparse=True))
        except BaseException:
            self.close()
            raise

    def address(self, layer: int, matrix: int) -> int:
        """Address of the stacked matrix."""
        extent = self._layers[layer].matrices[matrix].extent
        return self._ranges[layer][matrix].address + extent.offset % BLOCK_BYTES

    def view(self, layer: int, matrix: int, run: Run) -> memoryview:
        """Memory of a run of the matrix, to be read into."""
        return self._ranges[layer][matrix].view(run.slot_offset, run.nbytes)

    def forget(
        self, layer: int, matrix: int, expert: int, *, keeps_before: bool, keeps_after: bool
    ) -> None:
        """Free the memory of a slice, except blocks that it shares with kept neighbours."""
        run_of = self._layers[layer].matrices[matrix].run
        run, before, after = run_of(expert), run_of(expert - 1), run_of(expert + 1)
        begin, end = run.slot_offset, run.slot_offset + run.nbytes
        if keeps_before and before.start + before.nbytes > run.start:
            begin += BLOCK_BYTES
        if keeps_after and after.start < run.start + run.nbytes:
            end -= BLOCK_BYTES
        if begin < end:
            self._ranges[layer][matrix].forget(begin, end - begin)

    def close(self) -> None:
        close_all(*(memory.close for ranges in self._ranges for memory in ranges))
