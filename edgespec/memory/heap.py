"""The heaps of C's malloc, which keep what was freed.

Only glibc's tell what they hold; elsewhere what is resident counts.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from edgespec.memory.process import process_rss_bytes

_BLOCK_BYTES = 96 * 1024
"""Below the 128 KiB from which on glibc may give a block a mapping of its own."""
_MOST_BLOCKS = (64 << 20) // _BLOCK_BYTES
"""A thread's heap has 64 MiB at most."""


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int:
    """Bytes that malloc has given out and not got back, in all threads; what is resident where
    it does not tell."""
    libc = _glibc()
    if libc is None:
        return process_rss_bytes()
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def return_free_memory() -> None:
    """Hand freed memory back to the system: glibc keeps a good deal of it otherwise."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(ctypes.c_size_t(0))


def return_heaps_end() -> None:
    """Hand freed memory back, also the free end of this thread's own heap; for once in a while,
    after loading: the heap's addresses grow by a block.

    malloc_trim leaves that end as it is. Blocks are laid over it, until one makes the heap grow;
    freed below that one, they are free memory like any other.
    """
    libc = _glibc()
    if libc is None:
        return_free_memory()
        return
    before_bytes = libc.mallinfo2().arena
    blocks = [libc.malloc(_BLOCK_BYTES)]
    while len(blocks) < _MOST_BLOCKS and libc.mallinfo2().arena <= before_bytes:
        blocks.append(libc.malloc(_BLOCK_BYTES))
    for block in blocks[:-1]:
        libc.free(block)
    libc.malloc_trim(0)
    libc.free(blocks[-1])


def _glibc() -> Any:
    """The C library, if it is a glibc that tells what its heaps hold (2.33 and later)."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Mallinfo
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc
