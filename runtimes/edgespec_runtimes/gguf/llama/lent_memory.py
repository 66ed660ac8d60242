"""The memory of the CPU's device as a server lends it: so many bytes and no more.

llama.cpp takes the whole machine's memory for free, whatever a container allows or other programs
have. Here the library asks us how many pages there are, and for every buffer. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from edgespec.errors import UsageError
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.imports import Import

_Sysconf = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int)
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


class LentMemory:
    """Limits the buffers of the CPU's device to a number of bytes while the process lives.

    Raises UsageError where the library cannot be told.
    """

    def __init__(self, nbytes: int) -> None:
        base = abi.ggml()
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._allocate = ctypes.cast(base.ggml_aligned_malloc, _Allocate)
        self._release = ctypes.cast(base.ggml_aligned_free, _Free)
        self._sysconf = ctypes.cast(ctypes.CDLL(None).sysconf, _Sysconf)
        computing, allocating = abi.library_file("ggml-cpu"), abi.library_file("ggml-base")
        self._imports = (
            Import(str(computing), ("sysconf",), _Sysconf(self._answer)),
            Import(str(allocating), ("ggml_aligned_malloc",), _Allocate(self._lend)),
            Import(str(allocating), ("ggml_aligned_free",), _Free(self._take_back)),
        )
        if not all(imported.found for imported in self._imports):
            raise UsageError("--memory-budget of a server needs Linux: leave it out")
        for imported in self._imports:
            imported.replace()

    @property
    def free_bytes(self) -> int:
        return max(0, self.nbytes - sum(self._sizes.values()))

    def _answer(self, name: int) -> int:
        with self._lock:
            if name == os.sysconf_names["SC_PHYS_PAGES"]:
                return self.free_bytes // mmap.PAGESIZE
            return int(self._sysconf(name))

    def _lend(self, nbytes: int) -> int | None:
        with self._lock:
            if nbytes > self.free_bytes:
                return None
            address: int | None = self._allocate(nbytes)
            if address:
                self._sizes[address] = nbytes
            return address

    def _take_back(self, address: int | None, nbytes: int) -> None:
        with self._lock:
            self._sizes.pop(address or 0, None)
            self._release(address, nbytes)
