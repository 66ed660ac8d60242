"""Statistics and trimming of malloc's heaps, which keep freed memory.

Only glibc has both; elsewhere resident memory stands in for allocated memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgespec.memory.process import process_rss_bytes

_BLOCK_BYTES = 96 * 1024
"""Below the 128 KiB from which on glibc may serve a block by a mapping of its own."""
_MAX_BLOCKS = (64 << 20) // _BLOCK_BYTES
"""A thread's heap has 64 MiB at most."""
_TRIM_THRESHOLD, _MAP_THRESHOLD = -1, -3
"""glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
_MAPPED_BYTES = 1 << 20
_MOST_MAPPED_BYTES = 32 << 20
"""Value to which glibc raises the map threshold by itself as blocks are freed, and keeps twice as
much of a heap's free top then."""


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later; what is not used is named by letters."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "a", "b", "c", "hblkhd", "d", "e", "uordblks", "f", "g"]
    ]


def allocated_bytes() -> int:
    """Bytes allocated by malloc in all threads; without glibc, resident bytes of the process."""
    libc = _glibc()
    if libc is None:
        return process_rss_bytes()
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def trim_heap() -> None:
    """Return freed memory to the system, much of which glibc would keep."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(ctypes.c_size_t(0))


@contextmanager
def large_blocks_mapped() -> Iterator[None]:
    """Serve blocks of a MiB and more by mappings of their own, which go back when they are freed.

    Otherwise glibc puts a large block on a heap once one as large was freed, and what is freed
    between others stays resident. Afterwards its usual thresholds for large blocks hold, with which
    blocks that are allocated again and again cost no new pages.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MAP_THRESHOLD, _MAPPED_BYTES)
    try:
        yield
    finally:
        if libc is not None:
            libc.mallopt(_MAP_THRESHOLD, _MOST_MAPPED_BYTES)
            libc.mallopt(_TRIM_THRESHOLD, 2 * _MOST_MAPPED_BYTES)


def trim_heap_top() -> None:
    """Return freed memory to the system, including the free top of this thread's heap.

    malloc_trim skips that top. Blocks are allocated from it until the heap grows; all but the last
    are then freed, so that they lie below an allocated block and can be trimmed. The heap's address
    range grows by one block, so call it rarely, after loading.
    """
    libc = _glibc()
    if libc is None:
        trim_heap()
        return
    before_bytes = libc.mallinfo2().arena
    blocks = [libc.malloc(_BLOCK_BYTES)]
    while len(blocks) < _MAX_BLOCKS and libc.mallinfo2().arena <= before_bytes:
        blocks.append(libc.malloc(_BLOCK_BYTES))
    for block in blocks[:-1]:
        libc.free(block)
    libc.malloc_trim(0)
    libc.free(blocks[-1])


def _glibc() -> Any:
    """The C library if it is glibc 2.33 or later, which has `mallinfo2`; otherwise None."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Mallinfo
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    return libc
