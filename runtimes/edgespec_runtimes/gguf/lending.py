"""`edgespec rpc-server`: lends this machine's devices to edgespec or llama.cpp on others."""

from __future__ import annotations

from typing import NoReturn

from edgespec.errors import BudgetError, EdgespecError
from edgespec.memory import process
from edgespec.memory.budget import MIB
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc
from edgespec_runtimes.gguf.llama.lent_memory import LentMemory

HEADROOM_BYTES = 24 * MIB
"""Bytes for messages and graphs, of which the library keeps no count."""


def lend(host: str, port: int, budget_bytes: int | None, n_threads: int | None) -> NoReturn:
    """Serve at an address until the process ends: the GPUs, or the processor without one.

    `budget_bytes` limit the whole process where the processor computes. Raises BudgetError if they
    leave nothing to lend, and EdgespecError if the address cannot be used.
    """
    if not rpc.is_supported():
        raise EdgespecError(rpc.MISSING)
    devices = gpu.find_all() or ggml.devices_of(ggml.CPU)
    if budget_bytes is not None:
        taken_bytes = process.taken_bytes() + HEADROOM_BYTES
        if budget_bytes <= taken_bytes:
            raise BudgetError(
                f"--memory-budget {budget_bytes / MIB:.0f} MiB leaves nothing to lend: the server "
                f"itself takes {taken_bytes / MIB:.0f}",
                taken_bytes + MIB,
            )
        lent = LentMemory(budget_bytes - taken_bytes)
    rpc.serve(f"{host}:{port}", n_threads or process.usable_cores(), devices)
    del lent
    raise EdgespecError(
        f"{host}:{port} cannot be served: is another program there? --port names another"
    )
