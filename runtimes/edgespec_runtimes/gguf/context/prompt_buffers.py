"""Lends the memory of compute buffers that only large batches of a prompt need.

llama.cpp allocates them for its largest batch, and smaller ones use pages all over them. Here a
smaller one is laid out anew at their beginning, and the pages behind it go back to the system.
Linux only.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.imports import import_entries, put_in
from edgespec_runtimes.gguf.llama.page_advice import HUGE_BYTES, NO_HUGE_PAGES, advise

_ALLOCATE = "ggml_backend_sched_alloc_graph"
_Allocate = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)


class BufferSizes(NamedTuple):
    """Sizes of the parts of a context's compute buffers."""

    n_rows: int
    """Most rows of a pass that needs only what is kept."""
    kept_bytes: int
    lent_bytes: int


class PromptBuffers:
    """The compute buffer of a context, a part of which weights have but for large batches."""

    def __init__(self, sizes: BufferSizes, lend: Callable[[int], None]) -> None:
        """`lend` tells the weights how many bytes they have from now on."""
        self._sizes = sizes
        self._lend = lend
        self._is_large = self._is_for_large = True
        """True if the pass is large, and if the latest graph was laid out for one."""
        self._used = (0, 0)
        """Begin and end of the memory behind what is kept, once a large batch may have used it."""
        self._passes = _hook().passes

    def begin_pass(self, n_rows: int) -> None:
        """Call before weights settle for a pass over `n_rows`, which the buffer then fits."""
        self._is_large = n_rows > self._sizes.n_rows
        if self._is_large:
            self._lend(0)
        else:
            advise(*self._used)
            self._used = (0, 0)
            self._lend(self._sizes.lent_bytes)
        if self._is_large or self._is_for_large:
            self._passes[threading.get_ident()] = self

    def end_pass(self) -> None:
        """Call after the pass."""
        self._passes.pop(threading.get_ident(), None)

    def lay_out(self, scheduler: int, graph: int) -> bool:
        """Lay a graph out for the pass, as the function does that it replaces."""
        if not self._is_large:
            ggml.call(ctypes.c_bool, "ggml_backend_sched_reserve", scheduler, graph)
        if not ggml.call(ctypes.c_bool, _ALLOCATE, scheduler, graph):
            return False
        self._is_for_large = self._is_large
        begin, end = self._behind_kept(graph)
        advise(begin, min(end, -(-begin // HUGE_BYTES) * HUGE_BYTES), NO_HUGE_PAGES)
        self._used = (begin, end) if self._is_large else (0, 0)
        return True

    def _behind_kept(self, graph: int) -> tuple[int, int]:
        """Begin and end of the buffer's memory that is not kept."""
        n_nodes = ggml.call(ctypes.c_int, "ggml_graph_n_nodes", graph)
        found = (ggml.pointer("ggml_graph_node", graph, ctypes.c_int(i)) for i in range(n_nodes))
        nodes = map(abi.GgmlTensor.from_address, found)
        buffer = next(node.buffer for node in nodes if not node.view_src)  # views may be of a cache
        begin = ggml.pointer("ggml_backend_buffer_get_base", buffer)
        end = begin + ggml.call(ctypes.c_size_t, "ggml_backend_buffer_get_size", buffer)
        return min(begin + self._sizes.kept_bytes, end), end


class _Hook:
    """The function that llama.cpp calls to allocate a graph, once in a process."""

    def __init__(self) -> None:
        self.passes: dict[int, PromptBuffers] = {}
        """Buffers by the thread whose pass may lay them out anew."""
        self._function = _Allocate(self._allocate)
        put_in(import_entries(abi.library_path(), (_ALLOCATE,)), self._function)

    def _allocate(self, scheduler: int, graph: int) -> bool:
        if buffers := self.passes.get(threading.get_ident()):
            return buffers.lay_out(scheduler, graph)
        return bool(ggml.call(ctypes.c_bool, _ALLOCATE, scheduler, graph))


_hook = functools.cache(_Hook)
