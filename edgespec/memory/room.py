"""Refuses steps that would end this process without a sentence, as in a small container.

Knows what a step takes only as a number; each step states its own.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from edgespec.errors import BudgetError, EdgespecError
from edgespec.memory import cgroups, heap, process
from edgespec.settings.units import format_size

KEPT_PAGES_BYTES = 16 << 20
"""Pages of files, of Python and its libraries, that a process uses all the time; the kernel takes
others back before it kills."""

_STATUS = Path("/proc/self/status")


def check(nbytes: int, what: str) -> None:
    """Raise BudgetError if this process has no room for `nbytes`, which `what` takes."""
    total = process.total_bytes()
    if _present_bytes() + nbytes <= total:
        return
    heap.trim_heap()
    needed = _present_bytes() + nbytes
    if needed > total:
        raise BudgetError(
            f"{what} takes about {format_size(needed)}, and this process may have "
            f"{format_size(total)}: raise the memory limit of its container or cgroup"
        )


def check_threads(n_threads: int) -> None:
    """Raise EdgespecError if this process may not have as many threads more: libraries end it
    without a sentence then."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(n_threads):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise EdgespecError(
            f"this process may have only {len(started)} threads more, and a model takes about "
            f"{n_threads}: raise its limit of processes (pids.max, ulimit -u) or of addresses "
            "(ulimit -v), or lower `threads`"
        ) from error
    finally:
        over.set()
        for thread in started:
            thread.join()


def _present_bytes() -> int:
    """Memory of this process now, without what the kernel takes back before it kills."""
    resident = process.process_rss_bytes()
    if sys.platform != "linux":
        return resident
    return min(resident, cgroups.table(_STATUS)["RssAnon"] + KEPT_PAGES_BYTES)
