"""Matrices that are read in slices, such as an output head that no slot holds whole.

ggml computes every element of such a product by itself. So rows of the matrix may be multiplied by
themselves, if the same kernels do it: the same numbers at the same places. The pager reads the
slices that do not stay in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.node_graph import NodeGraph, SkippedNode
from edgespec_runtimes.gguf.llama.packer import BufferFields, Packer
from edgespec_runtimes.gguf.segments import WeightGroup

_FLOAT_BYTES = 4


class SlicedMatrices(Closeable):
    """Multiplies with sliced matrices in place of llama.cpp, slice by slice."""

    def __init__(
        self,
        groups: Sequence[WeightGroup],
        streamed: Sequence[WeightGroup],
        n_threads: int,
        packer: Packer,
        packed: Mapping[int, BufferFields],
    ) -> None:
        """`groups` in order of use, of which `streamed` are read in every pass. `packed`: the
        address of a packed matrix -> the buffer fields of tensors over it."""
        self._slices: dict[int, list[WeightGroup]] = {}
        for group in groups:
            if group.rows:
                self._slices.setdefault(group.weights[0].address, []).append(group)
        self._index = {group.segment: i for i, group in enumerate(streamed)}
        self._addresses: dict[object, int] = {}
        """Segment -> address, for slices that stay in memory."""
        self._packer = packer
        self._packed = packed
        self._row_slices = RowSlices(n_threads) if self._slices else None
        self._skipped = SkippedNode()
        self._sliced = 0
        """The matrix whose product llama.cpp skips now."""

    @property
    def addresses(self) -> Collection[int]:
        """The matrices' tensors."""
        return self._slices.keys()

    @property
    def backends(self) -> list[int]:
        """The addresses of the CPU backends that multiply."""
        return [self._row_slices.backend] if self._row_slices else []

    def keep(self, group: WeightGroup, base: int) -> None:
        """Take the segment of a slice that was read to `base` and stays there."""
        self._addresses[group.segment] = self._pack(group, base)

    def skip(self, node: int, matrix: int) -> None:
        """Make llama.cpp skip a product with one of these matrices. It stops after the node, and
        `multiply` follows."""
        self._skipped.skip(node)
        self._sliced = matrix

    def multiply(
        self, acquire: Callable[[int], int | None], release: Callable[[int], None]
    ) -> bool:
        """Compute the product that llama.cpp has skipped; False if there was none. `acquire`
        returns the address of a segment by its number, valid until `release`; None ends it early.

        Raises EdgespecError, and what `acquire` raises.
        """
        node = self._skipped.restore()
        if not node or self._row_slices is None:
            return False
        packed = self._packed.get(self._sliced)
        for group in self._slices[self._sliced]:
            assert group.rows is not None
            address = self._addresses.get(group.segment)
            if address is not None:
                self._row_slices.multiply(node, group.rows, address, packed)
                continue
            index = self._index[group.segment]
            base = acquire(index)
            if base is None:
                break
            self._row_slices.multiply(node, group.rows, self._pack(group, base), packed)
            release(index)
        return True

    def end_pass(self) -> None:
        """Restore a product that was skipped when the pass ended."""
        self._skipped.restore()

    def close(self) -> None:
        if self._row_slices:
            self._row_slices.close()

    def _pack(self, group: WeightGroup, base: int) -> int:
        """Pack the rows of a slice if its matrix is packed; returns their address."""
        (weight,), rows = group.weights, group.rows
        assert rows is not None
        address = base + group.segment.locate(
            weight.entry.file_index, group.segment.extents[0].offset
        )
        if weight.address in self._packed:
            self._packer.pack(address, weight.entry.type.code, weight.entry.shape[0], len(rows))
        return address


class RowSlices(Closeable):
    """Multiplies with slices of the matrix of a product that llama.cpp skipped."""

    def __init__(self, n_threads: int) -> None:
        self._graph = NodeGraph(n_threads)
        self._matrix = abi.GgmlTensor()

    @property
    def backend(self) -> int:
        """The address of the CPU backend that computes the slices."""
        return self._graph.backend

    def multiply(self, node: int, rows: range, address: int, packed: BufferFields | None) -> None:
        """Compute the part of the product that rows of the matrix give, which lie at `address`.
        `packed`: the buffer fields of a tensor over these rows if they are packed.

        Raises EdgespecError.
        """
        product = self._graph.node
        ctypes.pointer(product)[0] = abi.GgmlTensor.from_address(node)
        ctypes.pointer(self._matrix)[0] = abi.GgmlTensor.from_address(product.src[0] or 0)
        self._matrix.ne[1], self._matrix.data = len(rows), address
        if packed:
            packed.write_to(ctypes.addressof(self._matrix))
        product.src[0] = ctypes.addressof(self._matrix)
        product.ne[0] = len(rows)
        product.data = product.data + rows.start * _FLOAT_BYTES
        self._graph.compute()

    def close(self) -> None:
        self._graph.close()
