"""Measures the speed of direct reads from a file, by a short sample of it.

Prints nothing and keeps nothing in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.concurrency.owning import close_all
from edgespec.paging.reader import (
    BLOCK_BYTES,
    READ_BYTES,
    AlignedMemory,
    DirectReader,
    Run,
    block_floor,
)

SAMPLE_S = 0.3
USUAL_BYTES_PER_S = 1_000_000_000
"""A disk that was not measured: between SATA and NVMe drives."""


def bytes_per_second(
    path: Path,
    sample_s: float = SAMPLE_S,
    clock: Callable[[], float] = time.perf_counter,
    limit: int | None = None,
) -> float | None:
    """Bytes per second of sequentially issued reads, spread over the file, for `sample_s` seconds;
    at most `limit`.

    None if the file is too small. Raises WeightReadError.
    """
    starts = _spread(path.stat().st_size)
    if not starts:
        return None
    memory = AlignedMemory(READ_BYTES)
    reader = DirectReader([path])
    try:
        began, done = clock(), 0
        for start in starts:
            run = Run(0, start, READ_BYTES, READ_BYTES, 0)
            done += reader.read(run, memory.view(0, READ_BYTES), lambda: False)
            if clock() - began > sample_s:
                break
        return min(done / max(clock() - began, 1e-6), limit or math.inf)
    finally:
        close_all(reader.close, memory.close)


def _spread(size_bytes: int) -> list[int]:
    """Offsets of whole, block-aligned reads, the middle of the file first.

    Successive offsets are far apart, so that the drive's read-ahead does not help.
    """
    count = (size_bytes - BLOCK_BYTES) // READ_BYTES
    step = next((step for step in (7, 5, 3, 2) if count % step), 1)
    return [block_floor((i * step + count // 2) % count * READ_BYTES) for i in range(count)]
