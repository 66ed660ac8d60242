"""A separate program that tests llama.cpp's CPU code or GPUs, or asks devices for their memory.

It may crash, hang or take memory in place of its parent. It writes its progress, its growth in
bytes, or the devices' answers to stdout. `llama.trial_process` starts it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from threading import Timer

from edgespec.errors import EdgespecError
from edgespec.memory import process
from edgespec_runtimes.gguf.kernels.batch_invariance import distinct_values
from edgespec_runtimes.gguf.llama import ggml, gpu, rpc
from edgespec_runtimes.gguf.llama.cpu import PACKED, PLAIN, WRONG
from edgespec_runtimes.gguf.llama.device_memory import NO_ANSWER

N_IN, N_OUT, N_ROWS = 256, 64, 9
"""Shape of the test product, weights [N_OUT, N_IN] times N_ROWS rows, which covers all packed
kernels."""
CPU_KINDS = (2, 8, 12, 14)
"""Weight types to test: Q4_0, Q8_0, Q4_K and Q6_K, the most common ones."""
TOLERANCE = 0.02
"""Allowed difference of products as a share of the largest value: kernels quantise activations
differently."""
GPU_KINDS = (ggml.F32, ggml.F16, ggml.Q8_0)
"""Weight types to test on GPUs; products of floats use a library like cuBLAS."""
GPU_ROWS = (1, 64)
"""Rows to multiply: single tokens and prompts use different kernels."""
NO_GPU = 3
"""Exit code if there is no GPU."""
N_QUESTIONS = 3


def main(what: str, *args: str) -> int:
    """Run the trial `what`; returns the exit code, 0 for success."""
    if what == "cpu":
        return try_cpu()
    if what == "server":
        return ask_server(args[0], float(args[1]))
    return try_gpus() if what == "gpu" else ask_gpus()


def try_cpu() -> int:
    """Multiply a few rows unpacked and packed; returns 0 if all products agree."""
    _leave_no_core_dump()
    plain = {kind: _products(kind, ggml.plain_buffer_type()) for kind in CPU_KINDS}
    if not all(any(values) and all(map(math.isfinite, values)) for values in plain.values()):
        return WRONG
    os.write(1, PLAIN)
    for buffer_type in ggml.packing_buffer_types():
        for kind, expected in plain.items():
            is_packed = ggml.packs(buffer_type, kind, N_IN, N_OUT)
            if is_packed and not _close(_products(kind, buffer_type), expected):
                return WRONG
    os.write(1, PACKED)
    return 0


def _products(kind: int, buffer_type: int) -> list[float]:
    weights = ggml.quantised(kind, distinct_values(N_OUT * N_IN, 0.73, N_IN), N_IN)
    rows = distinct_values(N_ROWS * N_IN, 0.37, N_IN)
    found = ggml.product(buffer_type, kind, weights, rows, N_IN)
    return list(struct.unpack(f"{N_ROWS * N_OUT}f", found))


def _close(found: list[float], expected: list[float]) -> bool:
    most = TOLERANCE * max(map(abs, expected))
    return all(abs(one - other) <= most for one, other in zip(found, expected, strict=True))


def _leave_no_core_dump() -> None:
    """Suppress core dumps and error dialogues, because a crash is an expected result."""
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
    if sys.platform == "win32":
        no_dialogue = 0x0001 | 0x0002  # SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX
        ctypes.windll.kernel32.SetErrorMode(no_dialogue)


def try_gpus() -> int:
    """Compute a little on every GPU, as models would, and write by how many bytes that made the
    process grow. It starts with the library but no device, as the processes that plan do."""
    devices = gpu.find_all()
    if not devices:
        return NO_GPU
    taken_bytes, peak_bytes = process.footprint_bytes(), process.peak_rss_bytes()
    with ExitStack() as owned:
        for device in devices:
            ggml.new_backend(owned, device)
            _multiply(device)
        now_bytes, highest_bytes = process.footprint_bytes(), process.peak_rss_bytes()
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
