"""Estimates the progress of one long call by the memory that it has taken.

onnxruntime makes a session in one call that reports none. Knows nothing of what the call does.
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
"""Share of the progress that follows resident memory. The rest is work on the graph that nothing
measures: it goes by time, and approaches the end."""
PACE_S = 10.0
"""Seconds in which the part that goes by time comes to about two thirds of itself."""


def watched(
    call: Callable[[], T],
    cancel: Callable[[], None],
    what: str,
    expected_bytes: int,
    progress: Progress | None,
    resident: Callable[[], int] = process_rss_bytes,
) -> T:
    """The result of `call`, run in a thread that ends with it; progress is reported from this one.

    `expected_bytes` is what the call is expected to make resident. `cancel` makes it end soon, and
    is used when reporting raises.
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
