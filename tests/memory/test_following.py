"""A budget that follows the free memory: when it shrinks, and when it grows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.memory import cgroups
from edgespec.memory.cgroups import UNLIMITED
from edgespec.memory.following import (
    CALM_S,
    PRESSED_CALM_S,
    PRESSED_STEP,
    FreeMemory,
    MemoryReading,
    stalled_s,
)

GIB = 1 << 30
CALM = MemoryReading(0.0, 4 * GIB, False, 0.0, 0.0, 0)
STALL = "some avg10=0.00 avg60=0.00 avg300=0.00 total=44414803\nfull avg10=0.00 total=9\n"


def followed(*readings: MemoryReading, budget: int = 4 * GIB, **bounds: int) -> list[int]:
    """The budget after each reading."""
    free = FreeMemory(bounds.get("floor", GIB), bounds.get("ceiling", 8 * GIB))
    budgets = []
    for reading in readings:
        budget = free.next_budget(reading, budget) or budget
        budgets.append(budget)
    return budgets


def test_it_shrinks_at_once_to_what_is_free() -> None:
    assert followed(CALM, replace(CALM, at_s=1.0, free_budget_bytes=3 * GIB)) == [4 * GIB, 3 * GIB]


@pytest.mark.parametrize(("free", "kept"), [(0, 2 * GIB), (100 * GIB, 4 * GIB)])
def test_it_stays_between_floor_and_ceiling(free: int, kept: int) -> None:
    readings = [replace(CALM, at_s=100.0 * i, free_budget_bytes=free) for i in range(3)]
    found = followed(*readings, budget=3 * GIB, floor=2 * GIB, ceiling=4 * GIB)
    assert found[-1] == kept


def test_small_changes_are_not_followed() -> None:
    assert followed(replace(CALM, free_budget_bytes=4 * GIB - (4 << 20))) == [4 * GIB]


def test_it_grows_after_calm_seconds() -> None:
    readings = [replace(CALM, at_s=s, free_budget_bytes=6 * GIB) for s in (0, CALM_S - 1, CALM_S)]
    assert followed(*readings) == [4 * GIB, 4 * GIB, 6 * GIB]


def test_pressure_takes_a_share_however_much_seems_free() -> None:
    pressed = replace(CALM, at_s=1.0, group_stalled_s=0.2)
    assert followed(CALM, pressed)[-1] == int((1 - PRESSED_STEP) * 4 * GIB)


@pytest.mark.parametrize("change", [{"machine_stalled_s": 0.5}, {"limit_events": 3}])
def test_what_others_do_counts_where_memory_is_short(change: dict[str, float]) -> None:
    """Page cache fills a group to its limit without harm."""
    later = replace(CALM, at_s=1.0, **change)
    assert followed(CALM, later) == [4 * GIB, 4 * GIB]
    assert followed(CALM, replace(later, is_short=True))[-1] < 4 * GIB


def test_pressure_is_judged_over_whole_seconds() -> None:
    quick = replace(CALM, at_s=0.05, group_stalled_s=0.02)
    assert followed(CALM, quick, replace(quick, at_s=1.0)) == [4 * GIB] * 3


def test_it_grows_a_minute_after_pressure() -> None:
    more = replace(CALM, free_budget_bytes=6 * GIB)
    grown = [more, replace(more, at_s=CALM_S)]
    pressed = replace(more, at_s=CALM_S + 1, group_stalled_s=1.0)
    waited = [replace(pressed, at_s=pressed.at_s + s) for s in (CALM_S, PRESSED_CALM_S)]
    budgets = followed(*grown, pressed, *waited)
    assert budgets[1] == budgets[4] == 6 * GIB
    assert budgets[3] == budgets[2] < 6 * GIB


def test_the_kernels_file_tells_the_seconds_of_stalls(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_text(STALL)
    assert stalled_s(path) == pytest.approx(44.4, abs=0.1)
    assert stalled_s(tmp_path / "none") == 0.0


class UnifiedGroup:
    """A control group of version 2 below a fake root, of a machine with memory in plenty."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root, self._folder = root, root / "sys/fs/cgroup/app"
        self._folder.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/pressure").mkdir()
        (root / "proc/meminfo").write_text(
            f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"
        )
        (root / "proc/pressure/memory").write_text("some avg10=0.00 total=0\n")
        (root / "proc/self/status").write_text(f"VmRSS: {GIB >> 10} kB\n")
        (root / "proc/self/cgroup").write_text("0::/app\n")
        mount = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        (root / "proc/self/mountinfo").write_text(mount)
        (self._folder / "memory.max").write_text(str(limit_bytes))

    def read(self, at_s: float, used: int, stalled_us: int = 0, at_limit: int = 0) -> MemoryReading:
        """The reading when the group's processes use `used` bytes."""
        (self._folder / "memory.current").write_text(str(used))
        (self._folder / "memory.stat").write_text("active_file 0\ninactive_file 0\n")
        (self._folder / "memory.events").write_text(f"low 0\nhigh 0\nmax {at_limit}\noom 0\n")
        (self._folder / "memory.pressure").write_text(f"some avg10=0.00 total={stalled_us}\n")
        return replace(MemoryReading.now(self.root), at_s=at_s)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has control groups")
def test_a_group_of_version_2_is_followed(tmp_path: Path) -> None:
    group = UnifiedGroup(tmp_path, 4 * GIB)
    assert [found.limit_bytes() for found in cgroups.memory_groups(tmp_path)] == [
        4 * GIB,
        UNLIMITED,
    ]
    free = group.read(0.0, 2 * GIB)
    taken = group.read(1.0, 3 * GIB)
    stalled = group.read(2.0, 3 * GIB, stalled_us=200_000)
    full = group.read(3.0, 4 * GIB - GIB // 16, stalled_us=200_000, at_limit=1)
    assert taken.free_budget_bytes == free.free_budget_bytes - GIB
    assert (stalled.group_stalled_s, full.limit_events) == (0.2, 1)
    assert (free.is_short, full.is_short) == (False, True)
    budgets = followed(free, taken, stalled, full, budget=3 * GIB, floor=0)
    assert budgets == [free.free_budget_bytes, taken.free_budget_bytes, *budgets[2:]]
    assert budgets[2] == int((1 - PRESSED_STEP) * budgets[1]) > budgets[3]
