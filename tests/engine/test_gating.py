from __future__ import annotations

from edgespec.engine.gating import OverlapGate
from edgespec.values import PassReport


def stalled(share: float) -> PassReport:
    return PassReport(wall_s=2.0, stall_s=2.0 * share)


def test_the_gate_is_closed_until_a_pass_has_stalled() -> None:
    assert not OverlapGate().is_open
    assert OverlapGate().observe(stalled(0.5)).is_open


def test_the_gate_stays_open_when_drafting_takes_from_the_stall() -> None:
    between = stalled(0.2)
    assert OverlapGate().observe(stalled(0.5)).observe(between).is_open
    assert not OverlapGate().observe(between).is_open


def test_the_gate_closes_when_passes_hardly_stall() -> None:
    assert not OverlapGate().observe(stalled(0.5)).observe(stalled(0.05)).is_open


def test_a_pass_without_a_duration_moves_no_gate() -> None:
    gate = OverlapGate().observe(stalled(0.5))
    assert gate.observe(PassReport()) == gate
