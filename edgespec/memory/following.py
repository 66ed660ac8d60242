"""Says what budget the free memory of the machine affords, and when to change to it.

Decides from readings; only `MemoryReading.now` looks at the machine.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from edgespec.memory import cgroups, process

INTERVAL_S, PRESSURE_S = 0.25, 1.0
"""Seconds between two readings, and least seconds over which pressure is judged."""
CALM_S, PRESSED_CALM_S = 10.0, 60.0
"""Seconds before a budget grows that has shrunk, and after pressure."""
PRESSED_SHARE = 0.1
"""Share of the time that some task waited for memory from which on there is pressure."""
PRESSED_STEP = 0.125
"""Share of the budget that is given up under pressure, however much memory seems free."""
LEAST_CHANGE = 0.02
"""Smaller changes than this share of the budget are not made."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory of the machine and of this process's groups at one moment."""

    at_s: float
    free_budget_bytes: int
    """Memory that this process has and that is free, less a margin."""
    is_short: bool
    """True if less than twice the margin is free."""
    machine_stalled_s: float
    """Seconds since the start that some task of the machine waited for memory."""
    group_stalled_s: float
    """The same of this process's groups."""
    limit_events: int
    """Times that a limit of these groups was reached."""

    @classmethod
    def now(cls, root: Path = Path("/")) -> MemoryReading:
        rss, available = process.process_rss_bytes(root), process.available_bytes(root)
        total = process.total_bytes(root)
        groups = cgroups.memory_groups(root)
        return cls(
            time.monotonic(),
            process.auto_budget(rss, available, total),
            available < 2 * process.margin_bytes(total),
            stalled_s(root / "proc/pressure/memory"),
            max((stalled_s(group.pressure_file) for group in groups), default=0.0),
            sum(group.limit_events() for group in groups),
        )


class FreeMemory:
    """The budget between a floor and a ceiling that the free memory affords.

    It shrinks at once and grows after calm seconds.
    """

    def __init__(self, floor: int, ceiling: int) -> None:
        self._floor, self._ceiling = floor, max(floor, ceiling)
        self._before: MemoryReading | None = None
        self._may_grow_s = 0.0

    def next_budget(self, reading: MemoryReading, budget_bytes: int) -> int | None:
        """The budget to change to; None to keep the present one."""
        now_s, wanted = reading.at_s, reading.free_budget_bytes
        if self._before is None:
            self._before, self._may_grow_s = reading, now_s + CALM_S
        before = self._before
        at_limit = reading.limit_events > before.limit_events
        if at_limit or now_s - before.at_s >= PRESSURE_S:
            self._before = reading
            if _is_pressed(before, reading):
                wanted = min(wanted, int((1 - PRESSED_STEP) * budget_bytes))
                self._may_grow_s = now_s + PRESSED_CALM_S
        wanted = min(max(wanted, self._floor), self._ceiling)
        if abs(wanted - budget_bytes) < LEAST_CHANGE * budget_bytes:
            return None
        if wanted > budget_bytes:
            return wanted if now_s >= self._may_grow_s else None
        self._may_grow_s = max(self._may_grow_s, now_s + CALM_S)
        return wanted


def _is_pressed(before: MemoryReading, now: MemoryReading) -> bool:
    seconds = max(now.at_s - before.at_s, 1e-3)
    of_group = (now.group_stalled_s - before.group_stalled_s) / seconds
    of_machine = (now.machine_stalled_s - before.machine_stalled_s) / seconds
    # limits are reached harmlessly, too, where page cache fills the memory
    at_limit = of_machine > PRESSED_SHARE or now.limit_events > before.limit_events
    return of_group > PRESSED_SHARE or (now.is_short and at_limit)


def stalled_s(path: Path) -> float:
    """Seconds that some task waited, of a kernel's pressure file; 0 if there is none."""
    try:
        found = re.search(r"^some .*total=(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0
