"""Says what budget the free memory of the machine affords, and when to change to it.

Decides from readings; only `MemoryReading.now` looks at the machine.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from edgespec.memory import cgroups, process

INTERVAL_S = 1.0
"""Seconds between two readings, and over which pressure is judged."""
QUICK_S, MOVED_BYTES = 0.05, 16 << 20
"""Seconds between two looks at the groups, and what they have taken more when all is read again."""
CALM_S, MAX_CALM_S = 10.0, 320.0
"""Seconds without pressure before a budget grows; twice as many after each growth that led to
pressure."""
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


class GroupWatch:
    """Says when all is to be read again: after INTERVAL_S, and as soon as somebody has taken much
    memory in a group of this process that has a limit."""

    def __init__(self, root: Path = Path("/")) -> None:
        found = cgroups.memory_groups(root)
        self._groups = [group for group in found if group.limit_bytes() < cgroups.UNLIMITED]
        self._used: list[int] = []
        self._read_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        used = [group.used_bytes() for group in self._groups]
        taken = (now - before for now, before in zip(used, self._used, strict=False))
        if now_s - self._read_s < INTERVAL_S and max(taken, default=0) < MOVED_BYTES:
            return False
        self._used, self._read_s = used, now_s
        return True


class FreeMemory:
    """The budget between a floor and a ceiling that the free memory affords.

    It shrinks at once and grows after calm seconds.
    """

    def __init__(self, floor: int, ceiling: int) -> None:
        self._floor, self._ceiling = floor, max(floor, ceiling)
        self._before: MemoryReading | None = None
        self._calm_s = CALM_S
        self._calm_since_s: float | None = None
        self._grown_s = float("-inf")

    def next_budget(self, reading: MemoryReading, budget_bytes: int) -> int | None:
        """The budget to change to; None to keep the present one."""
        before, wanted = self._before, reading.free_budget_bytes
        is_judged = before is None or reading.limit_events > before.limit_events
        if is_judged or (before is not None and reading.at_s - before.at_s >= INTERVAL_S):
            self._before = reading
        else:
            before = None
        if before is not None and _is_pressed(before, reading):
            wanted = min(wanted, int((1 - PRESSED_STEP) * budget_bytes))
            self._calm_since_s = reading.at_s
            if reading.at_s - self._grown_s < self._calm_s:
                self._calm_s = min(2 * self._calm_s, MAX_CALM_S)
        wanted = min(max(wanted, self._floor), self._ceiling)
        if abs(wanted - budget_bytes) < LEAST_CHANGE * budget_bytes:
            return None
        if wanted < budget_bytes or self._calm_since_s is None:
            self._calm_since_s = reading.at_s
        if wanted > budget_bytes:
            if reading.at_s - self._calm_since_s < self._calm_s:
                return None
            self._grown_s = reading.at_s
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
