"""A budget that follows the free memory: when it shrinks, and when it grows."""

from __future__ import annotations

import pytest

from edgespec.memory.process import CALM_S, FreeMemory

GIB = 1 << 30


def followed(
    *readings: tuple[float, int], budget: int = 4 * GIB, floor: int = GIB, ceiling: int = 8 * GIB
) -> list[int]:
    """The budget after each reading of seconds and free bytes."""
    times = iter([readings[0][0], *(now_s for now_s, _ in readings)])
    free = FreeMemory(floor, ceiling, times.__next__)
    budgets = []
    for _, free_bytes in readings:
        budget = free.next_budget(free_bytes, budget) or budget
        budgets.append(budget)
    return budgets


def test_it_shrinks_at_once_to_what_is_free() -> None:
    assert followed((0.0, 4 * GIB), (0.1, 3 * GIB)) == [4 * GIB, 3 * GIB]


@pytest.mark.parametrize(("free", "kept"), [(0, 2 * GIB), (100 * GIB, 4 * GIB)])
def test_it_stays_between_floor_and_ceiling(free: int, kept: int) -> None:
    readings = [(100.0 * i, free) for i in range(3)]
    assert followed(*readings, budget=3 * GIB, floor=2 * GIB, ceiling=4 * GIB)[-1] == kept


def test_small_changes_are_not_followed() -> None:
    assert followed((0.0, 4 * GIB - (4 << 20))) == [4 * GIB]


def test_it_grows_after_calm_seconds() -> None:
    readings = [(s, 6 * GIB) for s in (0, CALM_S - 1, CALM_S)]
    assert followed(*readings) == [4 * GIB, 4 * GIB, 6 * GIB]
    shrunk = [(CALM_S + 1, 3 * GIB), (CALM_S + 2, 6 * GIB), (2 * CALM_S + 1, 6 * GIB)]
    assert followed(*readings, *shrunk)[3:] == [3 * GIB, 3 * GIB, 6 * GIB]
