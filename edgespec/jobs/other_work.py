"""What other processes compute while one is measured: beside them it is slower than it should be.

Knows processor times, nothing of runs or models.
"""

from __future__ import annotations

import os
import time

import psutil

from edgespec.memory import process

TOO_MUCH = 0.1
"""Of the cores: what was measured beside more says little."""


class OtherWork:
    """Of all processes but this one and the one that it measures, from now on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._others_s = _busy_s() - _own_s()

    def share(self, measured_s: float) -> float:
        """Of the cores that may be used here, what others took, where the measured process took
        `measured_s` of processor time. Cores that stay free beside both are nobody's loss."""
        others_s = _busy_s() - _own_s() - self._others_s - measured_s
        n_others = others_s / max(time.monotonic() - self._began_s, 1e-3)
        n_usable = process.usable_cores()
        n_spare = (psutil.cpu_count(logical=False) or n_usable) - n_usable
        return min(max((n_others - n_spare) / n_usable, 0.0), 1.0)


def _busy_s() -> float:
    """Of all cores, since the machine began."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_s() -> float:
    return sum(os.times()[:2])
