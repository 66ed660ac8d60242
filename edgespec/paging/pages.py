"""Moves pages of private memory from one address to another, where the kernel can.

Pages that move are neither freed nor filled with zeros, and stay as contiguous as they were: direct
reads into them cost less.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

_MAYMOVE, _FIXED, _DONTUNMAP = 1, 2, 4
_POPULATE_WRITE = 23
_MAP_FIXED = 0x10


def _library(kind: type[ctypes.CDLL]) -> ctypes.CDLL | None:
    library = kind(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mremap"):
        return None
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mremap.argtypes = address, size, size, number, address
    library.mremap.restype = address
    library.madvise.argtypes = address, size, number
    library.mmap.argtypes = address, size, number, number, number, ctypes.c_int64
    return library


_KERNEL = _library(ctypes.CDLL)
_QUICK = _library(ctypes.PyDLL)
"""The kernel's calls that take microseconds: the interpreter's lock is kept, as getting it back
takes longer."""


def move_pages(source: int, target: int, nbytes: int) -> bool:
    """Move the pages at `source` to `target`, whose own are freed; False if the kernel cannot.

    Both are page-aligned private memory, which stays mapped.
    """
    if _QUICK is None:
        return False
    flags = _MAYMOVE | _FIXED | _DONTUNMAP
    if _QUICK.mremap(source, nbytes, nbytes, flags, target) == target:
        return True
    # the kernel may have unmapped the target before it failed
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    _QUICK.mmap(target, nbytes, protection, flags, -1, 0)
    return False


def populate(address: int, nbytes: int) -> None:
    """Have the kernel put pages behind memory now; does nothing where it cannot."""
    if _KERNEL is not None:
        _KERNEL.madvise(address, nbytes, _POPULATE_WRITE)
