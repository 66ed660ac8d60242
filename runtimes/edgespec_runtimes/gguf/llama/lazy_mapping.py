"""Lets llama.cpp map a model file without reading it.

llama.cpp maps with MAP_POPULATE, which reads the whole file before loading goes on. For the time of
a load, libllama calls a function instead that clears that flag. Linux only: elsewhere llama.cpp
maps lazily already.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from edgespec_runtimes.gguf.llama.imports import replaced_import

_MAP_POPULATE = 0x8000

_MmapFunction = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
)


@contextmanager
def lazy_mapping(library: str) -> Iterator[bool]:
    """While active, mappings that `library` makes are filled on access, not at once.

    Yields whether that holds, so that the caller can refuse to promise a budget.
    """
    if sys.platform != "linux":
        yield sys.platform == "darwin"
        return
    real = ctypes.cast(ctypes.CDLL(None).mmap, _MmapFunction)

    def without_populate(
        address: int | None, length: int, protection: int, flags: int, fd: int, offset: int
    ) -> int | None:
        result: int | None = real(address, length, protection, flags & ~_MAP_POPULATE, fd, offset)
        return result

    with replaced_import(library, ("mmap", "mmap64"), _MmapFunction(without_populate)) as holds:
        yield holds
