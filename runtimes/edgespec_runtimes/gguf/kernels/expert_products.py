"""Products with some of a mixture's experts, computed apart from llama.cpp's own graph.

Knows MUL_MAT_ID; which experts are in memory is its callers' business.

ggml computes every row of such a product by itself, with the one expert that it chose, if it uses
its reference kernels. So rows may be taken out, computed among others or alone, and put back: the
same numbers at the same places.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.kernels.node_graph import NodeGraph
from edgespec_runtimes.gguf.llama import abi

BUFFER_BYTES = 1 << 20
"""Bytes for the rows that are computed at once, which a plan's headroom holds."""
_FLOAT_BYTES = _INT_BYTES = 4


class ExpertProducts(Closeable):
    """Products of one node at a time. Belongs to one thread."""

    def __init__(self, n_threads: int) -> None:
        self._graph = NodeGraph(n_threads)
        self._product = self._graph.node
        self._operand, self._ids = abi.GgmlTensor(), abi.GgmlTensor()

    @property
    def backend(self) -> int:
        """The address of the CPU backend that multiplies."""
        return self._graph.backend

    def compute(self, node: int, choices: np.ndarray, experts: Sequence[int]) -> None:
        """The rows of `node`, a MUL_MAT_ID, that chose one of `experts`; int [n_tokens, n_used].

        The node's operand is computed, and the slices of the experts are in their places.
        """
        product = abi.GgmlTensor.from_address(node)
        operand = abi.GgmlTensor.from_address(product.src[1] or 0)
        # [n_tokens, n_places, n]
        inputs = abi.values_of(product.src[1] or 0, np.float32)[0]
        outputs = abi.values_of(node, np.float32)[0]
        tokens, places = np.nonzero(np.isin(choices, experts, kind="table"))
        most_rows = max(1, BUFFER_BYTES // (_FLOAT_BYTES * (operand.ne[0] + product.ne[0])))
        for begin in range(0, len(tokens), most_rows):
            at = tokens[begin : begin + most_rows], places[begin : begin + most_rows]
            # an operand that is the same for all chosen experts has one place
            rows = inputs[at[0], at[1] % inputs.shape[1]]
            outputs[at] = self._multiply(product, operand, rows, choices[at])

    def close(self) -> None:
        self._graph.close()

    def _multiply(
        self, product: Any, operand: Any, rows: np.ndarray, chosen: np.ndarray
    ) -> np.ndarray:
        """Each of the rows times the matrix of its expert: float32 [n_rows, n_out]."""
        ids = np.ascontiguousarray(chosen, np.int32)
        out = np.empty((len(rows), product.ne[0]), np.float32)
        _fill(self._operand, operand, rows)
        _fill(self._product, product, out)
        _fill(self._ids, abi.GgmlTensor.from_address(product.src[2]), ids[:, None])
        # ids have no dimension between those of a choice and of the tokens
        self._ids.ne[1], self._ids.ne[2] = len(ids), 1
        self._ids.nb[2] = _INT_BYTES * len(ids)
        self._operand.op = self._ids.op = 0
        self._product.op = abi.op_number("MUL_MAT_ID")
        self._product.src[1] = ctypes.addressof(self._operand)
        self._product.src[2] = ctypes.addressof(self._ids)
        self._graph.compute()
        return out


def _fill(tensor: Any, like: Any, rows: np.ndarray) -> None:
    """Copy the tensor `like`, but over contiguous rows, a token each."""
    ctypes.pointer(tensor)[0] = like
    n_rows, n = rows.shape
    row_bytes = rows.itemsize * n
    tensor.ne[:] = n, 1, n_rows, 1
    tensor.nb[:] = rows.itemsize, row_bytes, row_bytes, row_bytes * n_rows
    tensor.view_src, tensor.view_offs = None, 0
    tensor.data = rows.ctypes.data
