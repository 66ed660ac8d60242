"""Round planners that know costs, and rounds that teach them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.rules.stop_rules import RoundSoFar
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport

RESIDENT = (*[(1, 0.040)] * 3, (2, 0.074), (8, 0.160), (13, 0.233))
"""A pair of issue 21: one row costs 40 ms, a second one 34 more, eight together 160."""
STEP_S = 0.002


def curve(*measured: tuple[int, float], read_s: float = 0.0) -> PassCurve:
    known = PassCurve(read_s=read_s)
    for n_rows, seconds in measured:
        stall_s = max(0.0, read_s - seconds)
        report = PassReport(seconds + stall_s, stall_s, read_s=read_s)
        known.see_pass(n_rows, report)
    return known


def planner(known: PassCurve | None = None) -> RoundPlanner:
    """A planner that knows what draft steps cost."""
    return begun(known, seen_step_s=STEP_S, seen_overhead_s=STEP_S)


def begun(passes: PassCurve | None = None, room: int = 99, **known: float) -> RoundPlanner:
    """Passes have been seen, guesses have not."""
    value = RoundPlanner(RoundCosts(passes or curve(*RESIDENT), **known))
    value.credit.begin_text(0, room)
    return value


def line(*confidences: float) -> RoundSoFar:
    tree, end = TokenTree(0), ROOT
    for token, confidence in enumerate(confidences):
        end = tree.add(end, token, confidence)
    return RoundSoFar(tree, [end])


def with_credit(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, credit=replace(value.credit, **changed))


def with_costs(value: RoundPlanner, **changed: Any) -> RoundPlanner:
    return replace(value, costs=replace(value.costs, **changed))


def rounds(value: RoundPlanner, *outcomes: RoundOutcome) -> RoundPlanner:
    """State of a copy of `value` after the rounds."""
    value = deepcopy(value)
    for outcome in outcomes:
        value.see_round(outcome)
    return value


def restored(numbers: Mapping[str, float]) -> RoundPlanner:
    """A planner of another run, which begins a text."""
    value = RoundPlanner()
    value.restore(numbers)
    value.credit.begin_text(0, 99)
    return value


OUTCOME = RoundOutcome(
    n_tokens=3,
    accepted=2,
    drafted=4,
    verified=7,
    n_rows=8,
    provisional_drafted=0,
    provisional_kept=0,
    draft_steps=4,
    draft_s=0.012,
    report=PassReport(wall_s=0.16),
    wall_s=0.175,
    guessed=True,
    growing_s=0.008,
    expected=2.5,
)
FAILED = replace(OUTCOME, n_tokens=1, accepted=0, expected=1.5)
PLAIN = replace(
    OUTCOME,
    n_tokens=1,
    accepted=0,
    verified=0,
    n_rows=1,
    report=PassReport(wall_s=0.04),
    wall_s=0.04,
    guessed=False,
    growing_s=0.0,
    draft_steps=0,
    expected=0.0,
)
RIGHT, WRONG = replace(PLAIN, surest=[True]), replace(PLAIN, surest=[False])
