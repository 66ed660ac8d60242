"""Moves pages of private memory to another address with `mremap`, where the kernel can.

Moved pages are neither freed nor zeroed again.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

_MAYMOVE, _FIXED, _DONTUNMAP = 1, 2, 4
_MAP_FIXED = 0x10


def _kernel() -> ctypes.PyDLL | None:
    """The C library, whose calls keep the GIL: they take microseconds, reacquiring it longer."""
    library = ctypes.PyDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mremap"):
        return None
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mremap.argtypes = address, size, size, number, address
    library.mremap.restype = address
    library.mmap.argtypes = address, size, number, number, number, ctypes.c_int64
    return library


_KERNEL = _kernel()


def move_pages(source: int, target: int, nbytes: int) -> bool:
    """Move the pages at `source` to `target`, whose own are freed; False if the kernel cannot.

    Both are page-aligned private memory, which stays mapped.
    """
    if sys.platform != "linux" or _KERNEL is None:
        return False
    flags = _MAYMOVE | _FIXED | _DONTUNMAP
    if _KERNEL.mremap(source, nbytes, nbytes, flags, target) == target:
        return True
    # the kernel may have unmapped the target before it failed
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    _KERNEL.mmap(target, nbytes, protection, flags, -1, 0)
    return False
