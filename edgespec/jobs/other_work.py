"""Measures the CPU time of other processes during a measurement, which they slow down."""

from __future__ import annotations

import os
import time

import psutil

from edgespec.memory import process

DISTURBING_SHARE = 0.1
"""Share of the cores used by others above which a measurement is unreliable."""


class OtherWork:
    """CPU time, from now on, of all processes except this one and the measured one."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._others_s = _busy_s() - _own_s()

    def share(self, measured_s: float) -> float:
        """Share of the usable cores that other processes used.

        `measured_s` is the CPU time of the measured process. Load on cores that this process may
        not use does not count.
        """
        others_s = _busy_s() - _own_s() - self._others_s - measured_s
        n_others = others_s / max(time.monotonic() - self._began_s, 1e-3)
        n_usable = process.usable_cores()
        n_spare = (psutil.cpu_count(logical=False) or n_usable) - n_usable
        return min(max((n_others - n_spare) / n_usable, 0.0), 1.0)


def _busy_s() -> float:
    """Busy seconds of all cores since boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_s() -> float:
    return sum(os.times()[:2])
