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
        self._graph = NodeGraph(n_threads) if n_threads else None
        self._matrix = abi.GgmlTensor()
        """A tensor over a slice."""
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
        return [self._graph.backend] if self._graph else []

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
        if not node or self._graph is None:
            return False
        product, matrix = self._graph.node, ctypes.addressof(self._matrix)
        ctypes.memmove(ctypes.addressof(product), node, ctypes.sizeof(product))
        ctypes.memmove(matrix, product.src[0] or 0, ctypes.sizeof(product))
        if fields := self._packed.get(self._sliced):
            fields.write_to(matrix)
        product.src[0], whole = matrix, product.data
        for group in self._slices[self._sliced]:
            assert group.rows is not None
            index = self._index.get(group.segment)
            address = self._addresses.get(group.segment)
            if address is None:
                assert index is not None
                if (base := acquire(index)) is None:
                    break
                address = self._pack(group, base)
            self._matrix.ne[1], self._matrix.data = len(group.rows), address
            product.ne[0], product.data = len(group.rows), whole + group.rows.start * _FLOAT_BYTES
            self._graph.compute()
            if index is not None:
                release(index)
        return True

    def end_pass(self) -> None:
        """Restore the node of a skipped product if the pass ended before `multiply`."""
        self._skipped.restore()

    def close(self) -> None:
        if self._graph:
            self._graph.close()

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
