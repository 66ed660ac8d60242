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
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_DONTNEED = 4

_MmapFunction = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
)


class Mappings:
    """What was mapped while a model was loaded."""

    def __init__(self, is_lazy: bool) -> None:
        self.is_lazy = is_lazy
        """Whether it is filled on access, so that the caller can refuse to promise a budget."""
        self._made: list[tuple[int, int]] = []

    def add(self, address: int, length: int) -> None:
        self._made.append((address, length))

    def drop_pages(self) -> None:
        """Give back what was read of them so far. Not after the load: what is not mapped any more
        may be another's by then."""
        for address, length in self._made:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED
            )


@contextmanager
def lazy_mapping(library: str) -> Iterator[Mappings]:
    """While active, mappings that `library` makes are filled on access, not at once."""
    if sys.platform != "linux":
        yield Mappings(sys.platform == "darwin")
        return
    real = ctypes.cast(ctypes.CDLL(None).mmap, _MmapFunction)
    made = Mappings(True)

    def without_populate(
        address: int | None, length: int, protection: int, flags: int, fd: int, offset: int
    ) -> int | None:
        result: int | None = real(address, length, protection, flags & ~_MAP_POPULATE, fd, offset)
        if result and result != _MAP_FAILED:
            made.add(result, length)
        return result

    with replaced_import(library, ("mmap", "mmap64"), _MmapFunction(without_populate)) as holds:
        made.is_lazy = holds
        yield made
