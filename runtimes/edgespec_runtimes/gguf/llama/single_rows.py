"""Products that llama.cpp rounds otherwise for several rows than for one, computed row by row.

ggml multiplies several rows of single or half precision by a kernel of tiles, which sums up in
another order than the one of a single row. Rows that lie in the third dimension instead of the
second are products of one row each: the same numbers at the same places, by the kernel of one row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection

from edgespec_runtimes.gguf.llama import abi


class SingleRows:
    """Rearranges a product before llama.cpp computes it, and puts it back afterwards."""

    def __init__(self, matrices: Collection[int]) -> None:
        """`matrices`: addresses of the tensors whose products are meant."""
        self.is_on = True
        self._matrices = frozenset(matrices)
        self._product_op = abi.op_number("MUL_MAT")
        self._arranged: tuple[int, abi.GgmlTensor, abi.GgmlTensor] | None = None

    def arrange(self, node: int, matrix: int) -> bool:
        """Whether `node`, a product with `matrix`, is computed row by row now: it has to be the
        last of the nodes that are computed together, and `restore` is to follow."""
        if not self.is_on or matrix not in self._matrices:
            return False
        product = abi.GgmlTensor.from_address(node)
        if (
            product.op != self._product_op
            or product.ne[1] == 1
            or product.ne[2] * product.ne[3] > 1
        ):
            return False
        before = abi.GgmlTensor.from_buffer_copy(product)
        operand = abi.GgmlTensor.from_buffer_copy(abi.GgmlTensor.from_address(product.src[1]))
        for tensor in (product, operand):
            n_rows, row_bytes = tensor.ne[1], tensor.nb[1]
            tensor.ne[1], tensor.ne[2] = 1, n_rows
            tensor.nb[2], tensor.nb[3] = row_bytes, row_bytes * n_rows
        product.src[1] = ctypes.addressof(operand)
        self._arranged = node, before, operand
        return True

    def restore(self) -> None:
        """Call after the product, and when a pass has ended: it may have been given up."""
        if self._arranged is None:
            return
        node, before, _ = self._arranged
        product = abi.GgmlTensor.from_address(node)
        product.ne, product.nb = before.ne, before.nb
        product.src[1] = before.src[1]
        self._arranged = None
