"""Refuses steps that would end this process without a sentence, as in a small container.

Knows what a step takes only as a number; each step states its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgespec.errors import BudgetError
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


def _present_bytes() -> int:
    """Memory of this process now, without what the kernel takes back before it kills."""
    resident = process.process_rss_bytes()
    if sys.platform != "linux":
        return resident
    return min(resident, cgroups.table(_STATUS)["RssAnon"] + KEPT_PAGES_BYTES)
