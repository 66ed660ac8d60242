"""Memory of a KV cache that llama.cpp has allocated whole, and that is taken cell by cell.

Pages of cells without content are returned to the system; they read as zeros, which attention masks
hide, and take memory again when they are written. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.imports import replaced_import
from edgespec_runtimes.gguf.llama.page_advice import NO_HUGE_PAGES, advise, whole_pages
from edgespec_runtimes.kit.segmented import ContextSize

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)


class CacheTensor(NamedTuple):
    """Keys or values of one layer, with one row per cell."""

    address: int
    row_bytes: int


class CacheMemory:
    """The buffers of a context's KV caches, or of some of them, in this process's memory."""

    def __init__(self, is_wanted: Callable[[Sequence[str]], bool] = lambda _: True) -> None:
        """`is_wanted` tells by llama.cpp's messages so far whether it creates a wanted cache."""
        self.tensors: list[CacheTensor] = []
        """None if there are no such caches in the process's memory."""
        self._is_wanted = is_wanted
        self._buffers: dict[int, tuple[int, int]] = {}
        """Addresses and sizes of llama.cpp's buffers."""

    @contextmanager
    def captured(self, log_lines: Sequence[str]) -> Iterator[None]:
        """In the block, capture the caches that this thread creates.

        `log_lines` are llama.cpp's messages meanwhile.
        """

        def allocate(real: Callable[[int, int], int | None], context: int, kind: int) -> int | None:
            buffer = real(context, kind)
            if buffer and values_are_rows(log_lines) and self._is_wanted(log_lines):
                self._take(context, buffer)
            return buffer

        names, owner = ("ggml_backend_alloc_ctx_tensors_from_buft",), abi.ggml()
        with (
            replaced_import(abi.library_path(), names, _Allocate, allocate, owner),
            self.clearing(),
        ):
            yield

    def clearing(self) -> AbstractContextManager[object]:
        """Context manager in which clearing the cache frees its memory instead of filling it with
        zeros."""

        def clear(real: Callable[[int, int], None], buffer: int, value: int) -> None:
            if buffer in self._buffers and not value:
                self._clear(*self._buffers[buffer])
            else:
                real(buffer, value)

        return clearing_by(clear)

    def size(self, n_cells: int) -> ContextSize:
        """The memory that so many cells take, cell by cell."""
        cell_bytes = sum(tensor.row_bytes for tensor in self.tensors)
        # the pages at both ends of what is filled are whole
        return ContextSize(n_cells, cell_bytes, 2 * mmap.PAGESIZE * len(self.tensors))

    def free(self, begin: int, end: int) -> None:
        """Return the whole pages of cells from `begin` to `end` to the system."""
        for address, row_bytes in self.tensors:
            advise(address + begin * row_bytes, address + end * row_bytes)

    def _take(self, context: int, buffer: int) -> None:
        if not abi.buffer_is_host(buffer):
            return
        found, tensor = [], ggml.pointer("ggml_get_first_tensor", context)
        while tensor:
            content = abi.GgmlTensor.from_address(tensor)
            if not content.view_src and content.name.startswith((b"cache_k_l", b"cache_v_l")):
                found.append(CacheTensor(content.data, content.nb[1]))
            tensor = ggml.pointer("ggml_get_next_tensor", context, tensor)
        if not found:
            return
        self.tensors += found
        begin = ggml.pointer("ggml_backend_buffer_get_base", buffer)
        size = ggml.call(ctypes.c_size_t, "ggml_backend_buffer_get_size", buffer)
        self._buffers[buffer] = (begin, size)
        advise(begin, begin + size, NO_HUGE_PAGES)

    def _clear(self, begin: int, size: int) -> None:
        end = begin + size
        first, last = whole_pages(begin, end)
        if first >= last:
            ctypes.memset(begin, 0, size)
            return
        ctypes.memset(begin, 0, first - begin)
        ctypes.memset(last, 0, end - last)
        advise(first, last)


def clearing_by(clear: Callable[..., None]) -> AbstractContextManager[object]:
    """Context manager in which this thread's buffers are cleared by `clear`, which gets the real
    function, the buffer and the value. If it does nothing, only pages that are written take memory:
    contexts for sizing allocate recurrent states."""
    names, owner = ("ggml_backend_buffer_clear",), abi.ggml()
    return replaced_import(abi.library_path(), names, _Clear, clear, owner)


def values_are_rows(log_lines: Sequence[str]) -> bool:
    """False if, by its log, llama.cpp computes without flash attention, which it does for some
    architectures whatever it is asked for: a cell's values are no row of the cache then."""
    lines = (line for line in log_lines if line.startswith("llama_context: flash_attn "))
    return not any("disabled" in line for line in lines)
