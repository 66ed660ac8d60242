"""`edgespec rpc-server`: lends this machine's devices to edgespec or llama.cpp on other machines.

llama.cpp regards all memory of the machine as free, despite containers and other programs. To
enforce a budget, the functions with which it asks for the memory size and for buffers are replaced.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NoReturn

from edgespec.errors import BudgetError, EdgespecError, UsageError
from edgespec.memory import process
from edgespec.memory.budget import MIB
from edgespec_runtimes.gguf.llama import abi, ggml, gpu, rpc
from edgespec_runtimes.gguf.llama.imports import import_entries, put_in

HEADROOM_BYTES = 24 * MIB
"""Bytes for messages and graphs, which the library does not count."""


def lend(host: str, port: int, budget_bytes: int | None, n_threads: int | None) -> NoReturn:
    """Serve the GPUs, or without any the CPU, at an address until the process ends.

    With the CPU, `budget_bytes` limits the whole process. Raises BudgetError if it leaves nothing
    to lend, and EdgespecError if the address cannot be used.
    """
    if not rpc.is_supported():
        raise EdgespecError(rpc.MISSING)
    devices, lent = gpu.find_all() or ggml.devices_of(ggml.CPU), None
    if budget_bytes is not None:
        footprint_bytes = process.footprint_bytes() + HEADROOM_BYTES
        if budget_bytes <= footprint_bytes:
            raise BudgetError(
                f"--memory-budget {budget_bytes / MIB:.0f} MiB leaves nothing to lend: the server "
                f"itself takes {footprint_bytes / MIB:.0f}",
                footprint_bytes + MIB,
            )
        lent = LentMemory(budget_bytes - footprint_bytes)
    rpc.serve(f"{host}:{port}", n_threads or process.usable_cores(), devices)
    del lent
    raise EdgespecError(
        f"{host}:{port} cannot be served: is another program there? --port names another"
    )


_Memory = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2)
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


class LentMemory:
    """Limits the total size of the CPU device's buffers until the process ends.

    Linux only: raises UsageError elsewhere.
    """

    def __init__(self, nbytes: int) -> None:
        base = abi.ggml()
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._allocate = ctypes.cast(base.ggml_aligned_malloc, _Allocate)
        self._release = ctypes.cast(base.ggml_aligned_free, _Free)
        self._functions = [
            ("ggml-rpc", "ggml_backend_dev_memory", _Memory(self._tell)),
            ("ggml-base", "ggml_aligned_malloc", _Allocate(self._lend)),
            ("ggml-base", "ggml_aligned_free", _Free(self._take_back)),
        ]
        found = [
            import_entries(str(abi.library_file(stem)), (name,))
            for stem, name, _ in self._functions
        ]
        if not all(found):
            raise UsageError("--memory-budget of a server needs Linux: leave it out")
        for entries, (_, _, function) in zip(found, self._functions, strict=True):
            put_in(entries, function)

    @property
    def free_bytes(self) -> int:
        return max(0, self.nbytes - sum(self._sizes.values()))

    def _tell(self, device: int, free: Any, total: Any) -> None:
        with self._lock:
            free[0], total[0] = self.free_bytes, self.nbytes

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
