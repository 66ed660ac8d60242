"""Measures the speed of direct reads from a file, by a short sample of it.

Prints nothing and keeps nothing in memory.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.concurrency.owning import close_all
from edgespec.paging.reader import BLOCK_BYTES, READ_BYTES, AlignedMemory, DirectReader, Run

SAMPLE_S, MAX_READS = 0.3, 1024
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
    count = (path.stat().st_size - BLOCK_BYTES) // READ_BYTES
    if count <= 0:
        return None
    # far apart, so that the drive's read-ahead does not help
    places = random.Random(0).sample(range(count), min(count, MAX_READS))
    memory = AlignedMemory(READ_BYTES)
    reader = DirectReader([path])
    try:
        began, done = clock(), 0
        for place in places:
            run = Run(0, place * READ_BYTES, READ_BYTES, READ_BYTES, 0)
            done += reader.read(run, memory.view(0, READ_BYTES), lambda: False)
            if clock() - began > sample_s:
                break
        return min(done / max(clock() - began, 1e-6), limit or math.inf)
    finally:
        close_all(reader.close, memory.close)
