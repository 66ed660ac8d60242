"""Estimates the progress of a long call from the memory that it has allocated.

onnxruntime creates a session in one call without progress reports. Knows nothing of what it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from edgespec.concurrency.worker import Worker
from edgespec.memory.process import process_rss_bytes
from edgespec.ports import Progress

T = TypeVar("T")

POLL_S = 0.1
MEASURED_SHARE = 0.8
"""Share of the progress that is measured by resident memory. The rest, work on the graph, is
estimated by time and approaches the end asymptotically."""
PACE_S = 10.0
"""Time constant of the part estimated by time, in seconds."""


def watched(
    call: Callable[[], T],
    cancel: Callable[[], None],
    what: str,
    expected_bytes: int,
    progress: Progress | None,
    resident: Callable[[], int] = process_rss_bytes,
) -> T:
    """Run `call` in a thread, report its progress from this one, and return its result.

    `expected_bytes` is the expected growth of resident memory. If reporting raises, `cancel` is
    called, which makes the call end soon.
    """
    if progress is None:
        return call()
    progress(what, 0.0)
    began, before = time.monotonic(), resident()
    measured = 0.0
    with Worker() as worker, worker.running(call, cancel) as running:
        while not running.done:
            elapsed = time.monotonic() - began
            time.sleep(min(POLL_S, 0.001 + elapsed / 8))
            grown = (resident() - before) / max(1, expected_bytes)
            measured = min(1.0, max(measured, grown))
            by_time = 1.0 - math.exp(-elapsed / PACE_S)
            progress(what, MEASURED_SHARE * measured + (1.0 - MEASURED_SHARE) * by_time)
        result = running.result()
    progress(what, 1.0)
    return result
