"""Pages of the process's memory: given back, made huge, or not read while a file is mapped.

While a model is loaded, functions that llama.cpp's libraries import are replaced. Linux only:
elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
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
GIVE_BACK, _HUGE, NO_HUGE_PAGES = 4, 14, 15
"""Linux's `MADV_DONTNEED`, `MADV_HUGEPAGE` and `MADV_NOHUGEPAGE`; Python has the names on Linux
only."""
_IS_MAPPED = 2
"""Bit of the size before an allocation, glibc's IS_MMAPPED (malloc.c, "malloc_chunk details")."""
_MAP_POPULATE = 0x8000
_MAP_FAILED = ctypes.c_void_p(-1).value
_Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t
)
_Map = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_longlong,
)


def advise(begin: int, end: int, advice: int = GIVE_BACK, page_bytes: int = mmap.PAGESIZE) -> None:
    """Return the whole pages of a range to the system, or give it other advice about them."""
    first, last = whole_pages(begin, end, page_bytes)
    if first < last:
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(advice))


def whole_pages(begin: int, end: int, page_bytes: int = mmap.PAGESIZE) -> tuple[int, int]:
    """Begin and end of the pages that lie within a range; equal or reversed if none does."""
    return -(-begin // page_bytes) * page_bytes, end // page_bytes * page_bytes


@contextmanager
def huge_pages(library: str) -> Iterator[None]:
    """In the block, what `library` allocates by `posix_memalign` in one large piece has huge pages,
    of which the processor looks up fewer addresses.

    Only those that lie within the piece: it takes no more memory once it is filled.
    """
    if sys.platform != "linux":
        yield
        return

    def allocate(real: Callable[..., int], place: Any, alignment: int, size: int) -> int:
        code = real(place, alignment, size)
        if not code and size > SHARED_BYTES and _is_mapping(place[0]):
            advise(place[0], place[0] + size, _HUGE, HUGE_BYTES)
        return code

    with replaced_import(library, ("posix_memalign",), _Allocate, allocate):
        yield


def _is_mapping(address: int) -> bool:
    """True if glibc has mapped an allocation by itself."""
    size = ctypes.c_size_t.from_address(address - ctypes.sizeof(ctypes.c_size_t))
    return bool(size.value & _IS_MAPPED)


class Mappings:
    """The address ranges mapped while a model was loaded."""

    def __init__(self, is_lazy: bool) -> None:
        self.is_lazy = is_lazy
        """True if pages are read on access; otherwise no budget can be enforced."""
        self._ranges: list[tuple[int, int]] = []

    def map(self, real: Callable[..., int | None], *arguments: int) -> int | None:
        """Call the system's `mmap`, but have it read nothing."""
        address, length, protection, flags, *rest = arguments
        result = real(address, length, protection, flags & ~_MAP_POPULATE, *rest)
        if result and result != _MAP_FAILED:
            self._ranges.append((result, result + length))
        return result

    def drop_pages(self) -> None:
        """Free the pages read so far. Call it only while loading: later a range may be reused."""
        for begin, end in self._ranges:
            advise(begin, end)


@contextmanager
def lazy_mapping(library: str) -> Iterator[Mappings]:
    """In the block, mappings of `library` are read on access, not at once: llama.cpp maps with
    MAP_POPULATE, which reads the whole file."""
    if sys.platform != "linux":
        yield Mappings(sys.platform == "darwin")
        return
    mappings = Mappings(True)
    with replaced_import(library, ("mmap", "mmap64"), _Map, mappings.map) as is_replaced:
        mappings.is_lazy = is_replaced
        yield mappings
