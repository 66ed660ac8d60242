"""A separate program that measures the library of GPUs, or asks devices for their memory.

It may crash, hang or take memory in place of its parent. It writes its growth in bytes, or the
devices' answers to stdout. `llama.trial_process` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Timer

from edgespec.errors import EdgespecError
from edgespec.memory import process
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc
from edgespec_runtimes.gguf.llama.device_memory import NO_ANSWER

N_IN, N_OUT = 256, 64
"""Shape of the weights that are multiplied."""
GPU_KINDS = (ggml.F32, ggml.F16, ggml.Q8_0)
"""Weight types to test on GPUs; products of floats use a library like cuBLAS."""
GPU_ROWS = (1, 64)
"""Rows to multiply: single tokens and prompts use different kernels."""
NO_GPU = 3
"""Exit code if there is no GPU."""
N_QUESTIONS = 3


def main(what: str, *args: str) -> int:
    """Run the trial `what`; returns the exit code, 0 for success."""
    if what == "server":
        return ask_server(args[0], float(args[1]))
    return try_gpus() if what == "gpu" else ask_gpus()


def try_gpus() -> int:
    """Compute a little on every GPU, as models would, and write by how many bytes that made the
    process grow. It starts with the library but no device, as the processes that plan do."""
    devices = gpu.find_all()
    if not devices:
        return NO_GPU
    taken_bytes, peak_bytes = process.process_rss_bytes(), process.peak_rss_bytes()
    with ExitStack() as owned:
        for device in devices:
            ggml.new_backend(owned, device)
            _multiply(device)
        now_bytes, highest_bytes = process.process_rss_bytes(), process.peak_rss_bytes()
    if highest_bytes > peak_bytes:
        now_bytes = max(now_bytes, highest_bytes)
    os.write(1, str(max(0, now_bytes - taken_bytes)).encode())
    return 0


def _multiply(device: int) -> None:
    """Compute products of all types that the device supports. Raises EdgespecError if none is."""
    kinds = [kind for kind in GPU_KINDS if ggml.multiplies(device, kind, N_IN, N_OUT)]
    if not kinds:
        raise EdgespecError(f"{ggml.device_name(device)} multiplies nothing")
    buffer_type = ggml.buffer_type_of(device)
    for kind in kinds:
        weights = ggml.quantised(kind, [0.5] * (N_IN * N_OUT), N_IN)
        for n_rows in GPU_ROWS:
            ggml.product(buffer_type, kind, weights, [0.5] * (n_rows * N_IN), N_IN, device)


def ask_gpus() -> int:
    """Query the memory of the local GPUs."""
    return _tell(gpu.find_all())


def ask_server(server: str, answer_s: float) -> int:
    """Query the memory of an RPC server's devices.

    Exits with `NO_ANSWER` after `answer_s`, in which the start of this process does not count.
    """
    watch = Timer(answer_s, os._exit, (NO_ANSWER,))
    watch.daemon = True
    watch.start()
    found = rpc.devices_of(server)
    from edgespec_runtimes.gguf import isolated  # noqa: F401 - which the process will be

    with ExitStack() as owned:
        for (
            device
        ) in found:  # a backend keeps the connection; without one every question makes its own
            ggml.new_backend(owned, device)
        return _tell(found)


def _tell(found: Sequence[int]) -> int:
    """Write JSON: the bytes that this process takes, and the devices."""
    answers = [(ggml.device_name(d), *ggml.memory_of(d), _round_trip_s(d)) for d in found]
    os.write(1, json.dumps([process.footprint_bytes(), answers]).encode())
    return 0


def _round_trip_s(device: int) -> float:
    """Latency of a device in seconds: the fastest of a few queries."""
    seconds = []
    for _ in range(N_QUESTIONS):
        began = time.perf_counter()
        ggml.memory_of(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
