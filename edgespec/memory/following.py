"""Says when to change a budget that follows the free memory of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_S = 0.25
"""Seconds between two readings."""
CALM_S = 10.0
"""Seconds before a budget grows that has shrunk."""
LEAST_CHANGE = 0.02
"""Smaller changes than this share of the budget are not made."""


class FreeMemory:
    """The budget between a floor and a ceiling that the free memory affords.

    It shrinks at once and grows after calm seconds.
    """

    def __init__(
        self, floor: int, ceiling: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._floor, self._ceiling, self._clock = floor, max(floor, ceiling), clock
        self._may_grow_s: float | None = None

    def next_budget(self, free_bytes: int, budget_bytes: int) -> int | None:
        """The budget to change to; None to keep the present one.

        `free_bytes` is what this process has and could have more, less a margin.
        """
        now_s, wanted = self._clock(), min(max(free_bytes, self._floor), self._ceiling)
        is_calm = self._may_grow_s is not None and now_s >= self._may_grow_s
        is_less = wanted < budget_bytes
        if abs(wanted - budget_bytes) < LEAST_CHANGE * budget_bytes:
            is_less = is_calm = False
        if is_less or self._may_grow_s is None:
            self._may_grow_s = now_s + CALM_S
        return wanted if is_less or is_calm else None
