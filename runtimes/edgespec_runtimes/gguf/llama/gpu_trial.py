"""A program of its own: computes a little on every GPU that llama.cpp finds, as models would.

Writes to stdout by how many bytes that made it grow.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from edgespec.errors import EdgespecError
from edgespec.memory import process
from edgespec_runtimes.gguf.llama import ggml, gpu

N_IN, N_OUT = 256, 64
KINDS = (ggml.F32, ggml.F16, ggml.Q8_0)
"""Types of the weights that are multiplied; products of floats use a library like cuBLAS."""
ROWS = (1, 64)
"""Rows that are multiplied: a token's and a prompt's kernels differ."""
NO_GPU = 3
"""Exit code if there is no GPU."""


def main() -> int:
    """Exit code 0 if every GPU computed."""
    devices = gpu.find_all()
    if not devices:
        return NO_GPU
    os.write(1, str(growth_bytes(devices)).encode())
    return 0


def growth_bytes(devices: list[int]) -> int:
    """Bytes by which this process grows when it computes on these devices. It starts with the
    library but no device, as the processes that plan do."""
    taken_bytes, peak_bytes = process.taken_bytes(), process.peak_rss_bytes()
    with ExitStack() as owned:
        for device in devices:
            ggml.new_backend(owned, device)
            _multiply(device)
        now_bytes, highest_bytes = process.taken_bytes(), process.peak_rss_bytes()
    if highest_bytes > peak_bytes:
        now_bytes = max(now_bytes, highest_bytes)
    return max(0, now_bytes - taken_bytes)


def _multiply(device: int) -> None:
    """Products of the kinds that the device takes. Raises EdgespecError where none can be made."""
    kinds = [kind for kind in KINDS if ggml.multiplies(device, kind, N_IN, N_OUT)]
    if not kinds:
        raise EdgespecError(f"{ggml.device_name(device)} multiplies nothing")
    buffer_type = ggml.buffer_type_of(device)
    for kind in kinds:
        weights = ggml.quantised(kind, [0.5] * (N_IN * N_OUT), N_IN)
        for n_rows in ROWS:
            ggml.product(buffer_type, kind, weights, [0.5] * (n_rows * N_IN), N_IN, device)


if __name__ == "__main__":
    sys.exit(main())
