"""CPU time of other processes, on machines with fake clocks."""

from __future__ import annotations

import psutil
import pytest

from edgespec.jobs import other_work
from edgespec.jobs.other_work import OtherWork
from edgespec.memory import process


@pytest.mark.parametrize(
    ("n_physical", "n_usable", "others_s", "share"),
    [
        (2, 2, 0.0, 0.0),
        (2, 2, 5.0, 0.25),
        (2, 2, 30.0, 1.0),
        (8, 2, 50.0, 0.0),  # six cores that may not be used here were free
        (8, 2, 70.0, 0.5),
    ],
)
def test_others_count_where_they_take_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, n_physical: int, n_usable: int, others_s: float, share: float
):
    """In ten seconds, beside a process that computed for nine."""
    busy_s, own_s = iter([100.0, 100.0 + 9.0 + 0.5 + others_s]), iter([1.0, 1.5])
    clock = iter([50.0, 60.0])
    monkeypatch.setattr(other_work, "_busy_s", lambda: next(busy_s))
    monkeypatch.setattr(other_work, "_own_s", lambda: next(own_s))
    monkeypatch.setattr(other_work.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(process, "usable_cores", lambda: n_usable)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: n_physical)
    assert OtherWork().share(measured_s=9.0) == pytest.approx(share)
