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
    """Lets llama.cpp pass over a product, for which `multiply` is called afterwards."""

    def __init__(self, n_threads: int) -> None:
        self._graph = NodeGraph(n_threads)
        self._matrix = abi.GgmlTensor()
        self._product_op, self._no_op = abi.op_number("MUL_MAT"), abi.op_number("NONE")
        self._passed_over = 0

    @property
    def backend(self) -> int:
        """What computes the slices: a CPU backend's address."""
        return self._graph.backend

    def pass_over(self, node: int) -> None:
        """Let llama.cpp compute nothing here: call `take_up` when it has done so."""
        ctypes.c_int.from_address(node + abi.OP_OFFSET).value = self._no_op
        self._passed_over = node

    def take_up(self) -> int:
        """The node that was passed over, again what it is, as graphs are used more than once; 0
        where none was."""
        node, self._passed_over = self._passed_over, 0
        if node:
            ctypes.c_int.from_address(node + abi.OP_OFFSET).value = self._product_op
        return node

    def multiply(self, node: int, rows: range, address: int, mark: BufferFields | None) -> None:
        """Compute what these rows of the matrix, which lie at `address`, give of the product.
        `mark`: how a tensor is marked that holds them, if not as the matrix is.

        Raises EdgespecError.
        """
        product = self._graph.node
        ctypes.pointer(product)[0] = abi.GgmlTensor.from_address(node)
        ctypes.pointer(self._matrix)[0] = abi.GgmlTensor.from_address(product.src[0] or 0)
        self._matrix.ne[1], self._matrix.data = len(rows), address
        if mark:
            mark.put_on(ctypes.addressof(self._matrix))
        product.src[0] = ctypes.addressof(self._matrix)
        product.ne[0] = len(rows)
        product.data = product.data + rows.start * _FLOAT_BYTES
        self._graph.compute()

    def close(self) -> None:
        self._graph.close()
