"""Multiplies matrices slice by slice, such as an output head larger than a slot.

ggml computes every element of such a product independently, so a slice of the rows gives the same
numbers if the same kernels are used. The pager reads the slices that are not pinned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.kernels.node_graph import NodeGraph, SkippedNode
from edgespec_runtimes.gguf.kernels.packer import BufferFields, Packer
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.weights.segments import WeightGroup

_FLOAT_BYTES = 4


class SlicedMatrices(Closeable):
    """Computes products with sliced matrices in place of llama.cpp."""

    def __init__(self, n_threads: int, packer: Packer, packed: Mapping[int, BufferFields]) -> None:
        """`packed` has buffer fields by the address of packed matrices. Without threads, no matrix
        will be sliced."""
        self._slices: dict[int, list[WeightGroup]] = {}
        self._index: dict[object, int] = {}
        self._addresses: dict[object, int] = {}
        """Addresses of pinned slices by segment."""
        self._packer = packer
        self._packed = packed
        self._row_slices = RowSlices(n_threads) if n_threads else None
        self._skipped = SkippedNode()
        self._sliced = 0
        """The matrix whose product llama.cpp is skipping."""

    @property
    def addresses(self) -> Collection[int]:
        """Addresses of the matrices' tensors."""
        return self._slices.keys()

    @property
    def backends(self) -> list[int]:
        """Addresses of the CPU backends that multiply."""
        return [self._row_slices.backend] if self._row_slices else []

    def arrange(self, groups: Sequence[WeightGroup], streamed: Sequence[WeightGroup]) -> None:
        """Multiply the slices among `groups`, which are in order of use; `streamed` ones are read
        in every pass."""
        self._slices = {}
        for group in groups:
            if group.rows:
                self._slices.setdefault(group.weights[0].address, []).append(group)
        self._index = {group.segment: i for i, group in enumerate(streamed)}

    def keep(self, group: WeightGroup, base: int) -> None:
        """Use the pinned slice that was read to `base`."""
        self._addresses[group.segment] = self._pack(group, base)

    def forget(self, group: WeightGroup) -> None:
        """Undo `keep`: the memory of the slice is freed."""
        self._addresses.pop(group.segment, None)

    def skip(self, node: int, matrix: int) -> None:
        """Make llama.cpp skip a product with one of the matrices; it stops after the node, and
        `multiply` follows."""
        self._skipped.skip(node)
        self._sliced = matrix

    def multiply(
        self, acquire: Callable[[int], int | None], release: Callable[[int], None]
    ) -> bool:
        """Compute the product that llama.cpp has skipped; False if there was none.

        `acquire` returns the address of a segment, valid until `release`, or None to cancel. Raises
        EdgespecError, and the errors of `acquire`.
        """
        node = self._skipped.restore()
        if not node or self._row_slices is None:
            return False
        self._row_slices.begin(node, self._packed.get(self._sliced))
        for group in self._slices[self._sliced]:
            assert group.rows is not None
            address = self._addresses.get(group.segment)
            if address is not None:
                self._row_slices.multiply(group.rows, address)
                continue
            index = self._index[group.segment]
            base = acquire(index)
            if base is None:
                break
            self._row_slices.multiply(group.rows, self._pack(group, base))
            release(index)
        return True

    def end_pass(self) -> None:
        """Restore the node of a skipped product if the pass ended before `multiply`."""
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
    """Computes parts of a product that llama.cpp skipped, for slices of its matrix."""

    def __init__(self, n_threads: int) -> None:
        self._graph = NodeGraph(n_threads)
        self._matrix = abi.GgmlTensor()
        self._product_address = ctypes.addressof(self._graph.node)
        self._matrix_address = ctypes.addressof(self._matrix)
        self._data = 0
        """Address of the whole product."""

    @property
    def backend(self) -> int:
        """Address of the CPU backend that computes the slices."""
        return self._graph.backend

    def begin(self, node: int, packed: BufferFields | None) -> None:
        """Set the product whose parts `multiply` computes.

        `packed` has the buffer fields of a tensor over a slice of the matrix, if it is packed.
        """
        product = self._graph.node
        ctypes.memmove(self._product_address, node, ctypes.sizeof(product))
        ctypes.memmove(self._matrix_address, product.src[0] or 0, ctypes.sizeof(product))
        if packed:
            packed.write_to(self._matrix_address)
        product.src[0] = self._matrix_address
        self._data = product.data

    def multiply(self, rows: range, address: int) -> None:
        """Compute the part of the product for `rows` of the matrix, which are at `address`.

        Raises EdgespecError.
        """
        matrix, product, n_rows = self._matrix, self._graph.node, len(rows)
        matrix.ne[1], matrix.data = n_rows, address
        product.ne[0], product.data = n_rows, self._data + rows.start * _FLOAT_BYTES
        self._graph.compute()

    def close(self) -> None:
        self._graph.close()
