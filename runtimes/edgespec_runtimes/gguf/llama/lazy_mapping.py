"""Makes llama.cpp map a model file without reading it.

llama.cpp maps with MAP_POPULATE, which reads the whole file. While a model is loaded, libllama's
`mmap` is replaced by a function that clears the flag. Linux only: elsewhere llama.cpp maps lazily.
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
    """The address ranges mapped while a model was loaded."""

    def __init__(self, is_lazy: bool) -> None:
        self.is_lazy = is_lazy
        """True if pages are read on access; otherwise no budget can be enforced."""
        self._ranges: list[tuple[int, int]] = []

    def add(self, address: int, length: int) -> None:
        self._ranges.append((address, length))

    def drop_pages(self) -> None:
        """Free the pages read so far. Call it only while loading: later a range may be reused."""
        for address, length in self._ranges:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED
            )


@contextmanager
def lazy_mapping(library: str) -> Iterator[Mappings]:
    """In the block, mappings of `library` are read on access, not at once."""
    if sys.platform != "linux":
        yield Mappings(sys.platform == "darwin")
        return
    real = ctypes.cast(ctypes.CDLL(None).mmap, _MmapFunction)
    mappings = Mappings(True)

    def without_populate(
        address: int | None, length: int, protection: int, flags: int, fd: int, offset: int
    ) -> int | None:
        result: int | None = real(address, length, protection, flags & ~_MAP_POPULATE, fd, offset)
        if result and result != _MAP_FAILED:
            mappings.add(result, length)
        return result

    with replaced_import(
        library, ("mmap", "mmap64"), _MmapFunction(without_populate)
    ) as is_replaced:
        mappings.is_lazy = is_replaced
        yield mappings
