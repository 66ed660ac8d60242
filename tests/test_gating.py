from __future__ import annotations

import pytest

from edgespec.gating import OverlapGate, StepAside
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


def rounds(
    rule: StepAside, n: int, drafted: tuple[float, int], plain: tuple[float, int]
) -> tuple[StepAside, list[bool]]:
    """Run `n` rounds that cost and bring what is given for either way."""
    drafts = []
    for _ in range(n):
        drafts.append(rule.drafts)
        rule = rule.observe(*(drafted if rule.drafts else plain))
    return rule, drafts


def test_drafting_is_tried_first() -> None:
    assert StepAside().drafts


def test_a_draft_that_pays_goes_on() -> None:
    _, drafts = rounds(StepAside(), 500, drafted=(1.2, 4), plain=(1.0, 1))
    assert sum(drafts) > 0.9 * 500


def test_a_draft_that_does_not_pay_stops() -> None:
    _, drafts = rounds(StepAside(), 500, drafted=(2.0, 1), plain=(1.0, 1))
    assert sum(drafts) < 0.1 * 500


def test_a_draft_that_begins_to_pay_is_taken_up_again() -> None:
    rule, _ = rounds(StepAside(), 100, drafted=(2.0, 1), plain=(1.0, 1))
    assert not rule.prefers_draft
    rule, _ = rounds(rule, 400, drafted=(1.2, 4), plain=(1.0, 1))
    assert rule.prefers_draft


def test_a_draft_that_ceases_to_pay_is_given_up() -> None:
    rule, _ = rounds(StepAside(), 200, drafted=(1.2, 4), plain=(1.0, 1))
    rule, _ = rounds(rule, 400, drafted=(2.0, 1), plain=(1.0, 1))
    assert not rule.prefers_draft


@pytest.mark.parametrize("draft_round_s", [1.1, 2.0, 10.0])
def test_probing_costs_a_small_share_of_the_time(draft_round_s: float) -> None:
    rule, _ = rounds(StepAside(), 100, drafted=(draft_round_s, 1), plain=(1.0, 1))
    _, drafts = rounds(rule, 5000, drafted=(draft_round_s, 1), plain=(1.0, 1))
    assert sum(drafts) * (draft_round_s - 1.0) < 0.05 * 5000


def test_a_difference_within_the_noise_changes_nothing() -> None:
    rule, _ = rounds(StepAside(), 500, drafted=(1.02, 1), plain=(1.0, 1))
    assert rule.prefers_draft


def test_the_first_round_after_a_change_is_not_counted() -> None:
    """A draft that sat out many rounds first reads what it missed."""
    rule, _ = rounds(StepAside(), 100, drafted=(2.0, 1), plain=(1.0, 1))
    while not rule.drafts:
        rule = rule.observe(1.0, 1)
    rule = rule.observe(60.0, 1)
    rule, _ = rounds(rule, 10, drafted=(1.2, 4), plain=(1.0, 1))
    assert rule.prefers_draft


def test_a_round_whose_draft_cost_nothing_brings_no_probe_nearer() -> None:
    rule = StepAside()
    for _ in range(100):
        rule = rule.observe(1.0, 3, is_free=True)
    assert rule == StepAside()
