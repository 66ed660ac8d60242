"""A budget that follows the free memory: when it shrinks, and when it grows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.memory.following import (
    CALM_S,
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


def test_growth_that_led_to_pressure_waits_twice_as_long() -> None:
    more = replace(CALM, free_budget_bytes=6 * GIB)
    grown = [more, replace(more, at_s=CALM_S)]
    pressed = replace(more, at_s=CALM_S + 1, group_stalled_s=1.0)
    after = [replace(pressed, at_s=CALM_S + 1 + s) for s in (CALM_S, 2 * CALM_S)]
    budgets = followed(*grown, pressed, *after)
    assert budgets[1] == 6 * GIB
    assert budgets[3] == budgets[2] < 6 * GIB
    assert budgets[4] == 6 * GIB


def test_the_kernels_file_tells_the_seconds_of_stalls(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_text(STALL)
    assert stalled_s(path) == pytest.approx(44.4, abs=0.1)
    assert stalled_s(tmp_path / "none") == 0.0
