"""A node of llama.cpp's graph that it skips, and a graph of one node on a CPU backend that computes
such a product instead.

The user of the graph decides what the node computes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.llama import abi

_GRAPH_NODES = 8


class NodeGraph(Closeable):
    """A graph of one `node`, which its user fills before `compute`. Belongs to one thread."""

    def __init__(self, n_threads: int) -> None:
        base, cpu = abi.ggml(), abi.library("ggml-cpu")
        for function in (base.ggml_init, base.ggml_new_graph_custom, cpu.ggml_backend_cpu_init):
            function.restype = ctypes.c_void_p
        base.ggml_graph_overhead_custom.restype = ctypes.c_size_t
        size = base.ggml_graph_overhead_custom(ctypes.c_size_t(_GRAPH_NODES), ctypes.c_bool(False))
        self._base: Any = base
        self._context = ctypes.c_void_p(base.ggml_init(abi.InitParams(size, None, True)))
        self._backend = ctypes.c_void_p(cpu.ggml_backend_cpu_init())
        cpu.ggml_backend_cpu_set_n_threads(self._backend, ctypes.c_int(n_threads))
        self.node = abi.GgmlTensor()
        graph = base.ggml_new_graph_custom(
            self._context, ctypes.c_size_t(_GRAPH_NODES), ctypes.c_bool(False)
        )
        self._graph = ctypes.c_void_p(graph)
        base.ggml_graph_add_node(self._graph, ctypes.byref(self.node))

    @property
    def backend(self) -> int:
        """The address of the CPU backend, valid until `close`."""
        return self._backend.value or 0

    def compute(self) -> None:
        """Compute the node. Raises EdgespecError."""
        status = self._base.ggml_backend_graph_compute(self._backend, self._graph)
        if status != 0:
            raise EdgespecError(f"ggml failed to multiply (status {status})")

    def close(self) -> None:
        if self._context:
            self._base.ggml_backend_free(self._backend)
            self._base.ggml_free(self._context)
            self._context = ctypes.c_void_p(None)


class SkippedNode:
    """A node of llama.cpp's graph that computes nothing between `skip` and `restore`."""

    def __init__(self) -> None:
        self._no_op = abi.op_number("NONE")
        self._node = self._op = 0

    def skip(self, node: int) -> None:
        """Make llama.cpp compute nothing at the node with this address."""
        op = ctypes.c_int.from_address(node + abi.OP_OFFSET)
        self._node, self._op, op.value = node, op.value, self._no_op

    def restore(self) -> int:
        """Give the node its op back, since graphs are used more than once. Returns the node's
        address, 0 if none was skipped."""
        node, self._node = self._node, 0
        if node:
            ctypes.c_int.from_address(node + abi.OP_OFFSET).value = self._op
        return node
