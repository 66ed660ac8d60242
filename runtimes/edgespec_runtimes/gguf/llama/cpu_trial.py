"""A program of its own: multiplies a few rows with llama.cpp's CPU code, plainly and packed.

It writes to stdout how far it came: where llama.cpp's code ends a process it ends this one.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
from contextlib import suppress

from edgespec_runtimes.gguf.llama import ggml
from edgespec_runtimes.gguf.llama.batch_invariance import distinct_values
from edgespec_runtimes.gguf.llama.cpu import PACKED, PLAIN, WRONG

N_IN, N_OUT, N_ROWS = 256, 64, 9
"""Weights [N_OUT, N_IN] times N_ROWS rows: enough for every kernel that packs weights."""
KINDS = (2, 8, 12, 14)
"""Q4_0, Q8_0, Q4_K and Q6_K: the quantisations that most models have."""
TOLERANCE = 0.02
"""Share of the largest value by which products may differ: kernels differ in how they quantise
activations."""


def main() -> int:
    """The exit code: 0 if every product is right."""
    _leave_no_core_dump()
    plain = {kind: _products(kind, ggml.plain_buffer_type()) for kind in KINDS}
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
    """Suppress the core dump and the error dialogue: a crash is an expected result here."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
    if sys.platform == "win32":
        no_dialogue = 0x0001 | 0x0002  # SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX
        ctypes.windll.kernel32.SetErrorMode(no_dialogue)


if __name__ == "__main__":
    sys.exit(main())
