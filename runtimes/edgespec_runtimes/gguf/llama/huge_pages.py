"""Gives a resident model's weights huge pages, of which the processor looks up fewer addresses.

llama.cpp allocates the weights by `posix_memalign`. While a model is loaded, libggml's import of it
is replaced by a function that advises the kernel. Linux only: elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgespec_runtimes.gguf.llama.imports import replaced_import

HUGE_BYTES = 2 << 20
SHARED_BYTES = 32 << 20
"""glibc maps a larger allocation by itself and unmaps it when it is freed, unless its heap happens
to have a free block of that size.

In malloc's heaps advice would outlive the allocation: whatever is allocated there next would take
whole huge pages.
"""
_MADV_HUGEPAGE = 14
_IS_MAPPED = 2
"""Bit of the size before an allocation, glibc's IS_MMAPPED (malloc.c, "malloc_chunk details")."""
_Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t
)


@contextmanager
def huge_pages(library: str) -> Iterator[None]:
    """In the block, what `library` allocates in this thread in one large piece has huge pages.

    Only those that lie within the piece: it takes no more memory once it is filled.
    """
    if sys.platform != "linux":
        yield
        return
    libc, thread = ctypes.CDLL(None), threading.get_ident()
    real = ctypes.cast(libc.posix_memalign, _Allocate)

    def allocate(place: Any, alignment: int, size: int) -> int:
        code: int = real(place, alignment, size)
        is_own = not code and size > SHARED_BYTES and threading.get_ident() == thread
        if is_own and _is_mapping(place[0]):
            begin, end = huge_range(place[0], size)
            if begin < end:
                size = end - begin
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_HUGEPAGE)
        return code

    with replaced_import(library, ("posix_memalign",), _Allocate(allocate)):
        yield


def _is_mapping(address: int) -> bool:
    """True if glibc has mapped an allocation by itself."""
    size = ctypes.c_size_t.from_address(address - ctypes.sizeof(ctypes.c_size_t))
    return bool(size.value & _IS_MAPPED)


def huge_range(begin: int, nbytes: int) -> tuple[int, int]:
    """Begin and end of the huge pages that lie within a range; equal or reversed if none does."""
    return -(-begin // HUGE_BYTES) * HUGE_BYTES, (begin + nbytes) // HUGE_BYTES * HUGE_BYTES
