"""A product computed for some rows of its matrix at a time, in place of llama.cpp's own.

Knows MUL_MAT and where the product's rows lie; which rows of the matrix are in memory, and where,
is its caller's business.

ggml computes every element of such a product by itself. So rows of the matrix may be multiplied by
themselves, if the same kernels do it: the same numbers at the same places.
"""

from __future__ import annotations

import ctypes

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.node_graph import NodeGraph
from edgespec_runtimes.gguf.llama.packer import BufferFields

_FLOAT_BYTES = 4


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
