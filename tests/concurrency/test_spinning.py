"""Waiting threads spin while they have the cores to themselves."""

from __future__ import annotations

from edgespec.concurrency.spinning import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, SpinRule

PASS_S = 0.03


def after(rule: SpinRule, *shares: float, begin: float = 0.0) -> float:
    """Let the rule see passes that waited for a core for these shares; returns the time after
    them."""
    for share in shares:
        begin += PASS_S
        rule.see_pass(begin, PASS_S, share * PASS_S)
    return begin


def test_threads_spin_after_a_pass_that_had_the_cores() -> None:
    rule = SpinRule()
    after(rule, 0.02)
    assert rule.spins


def test_a_busy_program_stops_the_spinning() -> None:
    rule = SpinRule()
    end = after(rule, *[0.02] * 3)
    after(rule, *[0.6] * 3, begin=end)
    assert not rule.spins


def test_spinning_goes_on_after_a_burst_of_other_work() -> None:
    rule = SpinRule()
    end = after(rule, *[0.02] * 200, 0.9, 0.9)
    end = after(rule, *[0.02] * (int(SHORTEST_PAUSE_S / PASS_S) - 2), begin=end)
    assert not rule.spins
    after(rule, *[0.02] * 3, begin=end)
    assert rule.spins


def test_trials_that_fail_become_rare() -> None:
    """Beside one busy program a thread that sleeps hardly waits, and one that spins does."""
    rule = SpinRule()
    now, trials = 0.0, []
    while now < 20 * LONGEST_PAUSE_S:
        if rule.spins:
            trials.append(now)
        now = after(rule, 0.6 if rule.spins else 0.1, begin=now)
    assert len(trials) < 40
    assert trials[-1] - trials[-2] >= LONGEST_PAUSE_S
