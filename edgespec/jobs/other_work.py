"""Processor time of other processes beside a measurement, which they slow down.

Knows processor times, nothing of runs or models.
"""

from __future__ import annotations

import os
import time

import psutil

from edgespec.memory import process

TOO_MUCH = 0.1
"""Share of the cores above which a measurement says little."""


class OtherWork:
    """Processor time from now on of all processes but this one and the one that it measures."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._others_s = _busy_s() - _own_s()

    def share(self, measured_s: float) -> float:
        """Share of the usable cores that others took, where the measured process took `measured_s`
        of processor time. Cores that stay free beside both do not count."""
        others_s = _busy_s() - _own_s() - self._others_s - measured_s
        n_others = others_s / max(time.monotonic() - self._began_s, 1e-3)
        n_usable = process.usable_cores()
        n_spare = (psutil.cpu_count(logical=False) or n_usable) - n_usable
        return min(max((n_others - n_spare) / n_usable, 0.0), 1.0)


def _busy_s() -> float:
    """Busy seconds of all cores since the machine began."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_s() -> float:
    return sum(os.times()[:2])
