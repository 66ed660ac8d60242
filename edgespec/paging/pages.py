"""Moves pages of private memory to another address with `mremap`, where the kernel can.

Moved pages are neither freed nor zeroed and stay physically contiguous, so direct reads into them
cost less.
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
"""The same calls without releasing the GIL: they take microseconds, reacquiring it takes longer."""


def move_pages(source: int, target: int, nbytes: int) -> bool:
    """Move the pages at `source` to `target`, whose own are freed; False if the kernel cannot.

    Both are page-aligned private memory, which stays mapped.
    """
    if sys.platform != "linux" or _QUICK is None:
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
    """Have the kernel back a range with pages now; a no-op where it cannot."""
    if _KERNEL is not None:
        _KERNEL.madvise(address, nbytes, _POPULATE_WRITE)
