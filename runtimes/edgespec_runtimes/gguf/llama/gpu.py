"""Finds the GPUs that llama.cpp can use, and starts their library. Knows no models."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack

import numpy as np

from edgespec.errors import EdgespecError
from edgespec.registry import GpuMemory
from edgespec_runtimes.gguf.llama import ggml, loading

_N_IN, _N_OUT = 256, 64
"""Shape of the weights that are multiplied first."""
_KINDS = (ggml.F32, ggml.F16, ggml.Q8_0)
"""Their types; products of floats use a library like cuBLAS."""
_ROWS = (1, 64)
"""Rows to multiply: single tokens and prompts use different kernels."""


def find() -> int | None:
    """Address of the first GPU; None without one."""
    return next(iter(find_all()), None)


def find_all() -> list[int]:
    """Addresses of the local GPUs that can get layers."""
    loading.start()
    return ggml.gpus()


def memory() -> GpuMemory:
    """Memory of all GPUs that can get layers, together."""
    found, names = [*map(ggml.memory_of, find_all())], map(ggml.device_name, find_all())
    free, total = (sum(one) for one in zip(*found, strict=True))
    return GpuMemory(", ".join(names), total_bytes=total, free_bytes=free, reserved_bytes=0)


def has_own_memory(device: int) -> bool:
    """False if the device shares the process's memory, as Apple's GPUs do."""
    return sys.platform != "darwin" and ggml.kind_of(device) != ggml.INTEGRATED_GPU


@functools.cache
def start(device: int) -> None:
    """Compute a little on a GPU, as models will, so that a plan's row of the process has what its
    library takes. Raises EdgespecError if it multiplies nothing."""
    kinds = [kind for kind in _KINDS if ggml.multiplies(device, kind, _N_IN, _N_OUT)]
    if not kinds:
        raise EdgespecError(f"{ggml.device_name(device)} multiplies nothing: leave it out")
    buffer_type = ggml.buffer_type_of(device)
    with ExitStack() as owned:
        ggml.new_backend(owned, device)
        for kind in kinds:
            weights = ggml.quantised(kind, np.full((_N_OUT, _N_IN), 0.5, np.float32))
            for n_rows in _ROWS:
                rows = np.full((n_rows, _N_IN), 0.5, np.float32)
                ggml.product(buffer_type, kind, weights, rows, device)
