"""Skips a node of llama.cpp's graph, and computes its product with a graph of one node instead.

The caller determines what the node computes.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

from edgespec.concurrency.owning import Closeable
from edgespec_runtimes.gguf.llama import abi, ggml


class NodeGraph(Closeable):
    """A graph with one `node`, which the caller sets before `compute`. For use by one thread."""

    def __init__(self, n_threads: int) -> None:
        self._owned = ExitStack()
        self.node = abi.GgmlTensor()
        self._graph = ggml.new_graph(ggml.new_context(self._owned))
        self.backend = ggml.new_cpu_backend(self._owned, n_threads)
        """Address of the CPU backend, valid until `close`."""
        ggml.call(None, "ggml_graph_add_node", self._graph, ctypes.addressof(self.node))

    def compute(self) -> None:
        """Compute the node. Raises EdgespecError."""
        ggml.compute(self.backend, self._graph)

    def close(self) -> None:
        self._owned.close()


class SkippedNode:
    """A node of llama.cpp's graph that does nothing between `skip` and `restore`."""

    def __init__(self) -> None:
        self._no_op = abi.op_number("NONE")
        self._node = self._op = 0

    def skip(self, node: int) -> None:
        """Turn the node at this address into a no-op."""
        op = ctypes.c_int.from_address(node + abi.OP_OFFSET)
        self._node, self._op, op.value = node, op.value, self._no_op

    def restore(self) -> int:
        """Restore the node's operation, because graphs are reused.

        Returns the node's address, 0 if none was skipped.
        """
        node, self._node = self._node, 0
        if node:
            ctypes.c_int.from_address(node + abi.OP_OFFSET).value = self._op
        return node
