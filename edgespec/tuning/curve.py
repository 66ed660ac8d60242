"""Tokens a second over memory: what each budget brings, predicted and, where it is short, measured.

It knows plans, predictions and runs; how they are shown is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from edgespec import theory
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import Choice, Speeds, calibrated, compute_places, predict
from edgespec.tuning.measurements import Refused
from edgespec.tuning.measuring import PASS_SIZES, Lab, Measured, Say, Wanted, measure

ANY_BYTES = 1 << 50
GIB = 1 << 30
LEAST_TOKENS, MOST_TOKENS = 8, 48
"""Of each text of a measured budget."""


@dataclass(frozen=True, slots=True)
class Point:
    """One budget."""

    budget_bytes: int
    smallest_bytes: int = 0
    """Where the budget is too small: one that is not."""
    resident: bool = False
    bytes_per_pass: int = 0
    predicted: float | None = None
    """Tokens a second; None where nothing is known of how resident weights compute."""
    predicted_alone: float | None = None
    """Without the draft, which leaves its memory to the target."""
    measured: float | None = None
    peak_bytes: int = 0

    @property
    def works(self) -> bool:
        return not self.smallest_bytes


@dataclass(frozen=True, slots=True)
class Curve:
    """All of them, the smallest first."""

    measured: Measured
    points: tuple[Point, ...]
    resident_bytes: int | None
    """The budget from which on all of the target stays in memory; None if it never can."""

    @property
    def draft_pays_until(self) -> int | None:
        """The first budget that is as good without the draft; None where there is no such one."""
        ends = (
            point.budget_bytes
            for point in self.points
            if point.predicted and point.predicted_alone
            if point.predicted_alone >= point.predicted
        )
        return next(ends, None)

    def gain_per_gib(self, point: Point) -> float | None:
        """Tokens a second that one more GiB brought on the way from the budget before."""
        before = [p for p in self.points if p.predicted and p.budget_bytes < point.budget_bytes]
        if not before or point.predicted is None or before[-1].predicted is None:
            return None
        added = (point.budget_bytes - before[-1].budget_bytes) / GIB
        return (point.predicted - before[-1].predicted) / added


def draw(lab: Lab, wanted: Wanted, budgets: Sequence[int], say: Say = lambda _: None) -> Curve:
    """Plan every budget, measure the pair at a middle one, predict the others, run as many as there
    is time for. Raises BudgetError where none of them works."""
    budgets = sorted(set(budgets))
    asked = [_with_budget(wanted, nbytes) for nbytes in (*budgets, ANY_BYTES)]
    plans = _plans(lab, asked, wanted.usual)
    alone = _plans(lab, asked[:-1], replace(wanted.usual, draft=None, threads_draft=None))
    *plans, unlimited = plans
    working = [at for at, plan in enumerate(plans) if isinstance(plan, MemoryPlan)]
    if not working:
        refused = next(plan for plan in plans if isinstance(plan, Refused))
        raise BudgetError(
            f"no budget of --budgets works: {refused.message}", refused.smallest_bytes
        )
    paged = [at for at in working if _is_paged(plans[at])]
    base = (paged or working)[len(paged or working) // 2]
    at_base = replace(wanted, load=asked[base])
    say(f"the pair at {budgets[base] / GIB:.2f} GiB")
    measured = measure(lab, at_base, say, other_settings=False)
    by_kind = {measured.plan.paged: measured.speeds}
    points: list[Point] = []
    for left, (nbytes, load, plan, without) in enumerate(
        zip(budgets, asked, plans, alone, strict=False)
    ):
        if isinstance(plan, Refused):
            points.append(Point(nbytes, plan.smallest_bytes))
            continue
        point = Point(nbytes, resident=not plan.paged, bytes_per_pass=plan.bytes_per_pass)
        share_s = lab.left_s / max(1, len(budgets) - left)
        point = _run(lab, measured, load, plan, point, by_kind, share_s, say)
        points.append(_predicted(point, wanted.usual, plan, without, by_kind))
    resident = isinstance(unlimited, MemoryPlan) and not unlimited.paged
    resident_bytes = unlimited.planned_bytes if isinstance(unlimited, MemoryPlan) else 0
    return Curve(measured, tuple(points), resident_bytes if resident else None)


def _run(
    lab: Lab,
    measured: Measured,
    load: LoadSettings,
    plan: MemoryPlan,
    point: Point,
    by_kind: dict[bool, Speeds],
    share_s: float,
    say: Say,
) -> Point:
    """A short run, if there is time for one. What is the first of its kind, paged or resident, also
    tells how that kind computes."""
    usual, is_new = measured.wanted.usual, plan.paged not in by_kind
    rate = 0.0 if is_new else predict(usual, plan, by_kind[plan.paged]).tokens_per_s
    least_s = _load_s(measured, plan) + (LEAST_TOKENS / rate if rate else 0.0)
    if share_s <= 0 or least_s > (lab.left_s if is_new else share_s):
        return point
    say(f"a run at {point.budget_bytes / GIB:.2f} GiB")
    n_tokens = min(max(int(share_s * rate / 2), LEAST_TOKENS), MOST_TOKENS)
    sizes = PASS_SIZES if is_new else ()
    run = lab.write(usual.load(load), usual.engine, n_tokens, sizes, most_s=share_s)
    if is_new:
        known = next(iter(by_kind.values()))
        speeds = replace(known, compute={usual.threads: compute_places(run.passes)})
        by_kind[plan.paged] = calibrated(usual, plan, speeds, run)
    return replace(point, measured=run.tokens_per_s, peak_bytes=run.peak_bytes)


def _load_s(measured: Measured, plan: MemoryPlan) -> float:
    """What filling memory takes at least, as fast as the disk is read."""
    if not measured.reads:
        return measured.first.load_s
    nbytes = plan.pinned_bytes if plan.paged else sum(segment.nbytes for segment in plan.segments)
    return theory.pass_seconds(nbytes + plan.expert_bytes, measured.reads[0].bytes_per_s)


def _predicted(
    point: Point,
    usual: Choice,
    plan: MemoryPlan,
    without: MemoryPlan | Refused,
    by_kind: dict[bool, Speeds],
) -> Point:
    found, alone = None, None
    if plan.paged in by_kind:
        found = predict(usual, plan, by_kind[plan.paged]).tokens_per_s
    if isinstance(without, MemoryPlan) and without.paged in by_kind:
        choice = replace(usual, draft=None, threads_draft=None)
        # alone there is no learning that could fall short of the best round
        speeds = replace(by_kind[without.paged], reached=1.0)
        alone = predict(choice, without, speeds).tokens_per_s
    return replace(point, predicted=found, predicted_alone=alone)


def _with_budget(wanted: Wanted, nbytes: int) -> LoadSettings:
    return LoadSettings.model_validate(wanted.load.as_given() | {"memory_budget": nbytes})


def _plans(lab: Lab, loads: Sequence[LoadSettings], choice: Choice) -> list[MemoryPlan | Refused]:
    engine: EngineSettings = choice.engine
    return list(lab.plans([(choice.load(load), engine) for load in loads]))


def _is_paged(plan: MemoryPlan | Refused) -> bool:
    return isinstance(plan, MemoryPlan) and plan.paged


def error_of(point: Point) -> float | None:
    """How far the prediction lay from what was measured, as a share of it."""
    if point.measured and point.predicted:
        return point.predicted / point.measured - 1
    return None


def typical_error(curve: Curve) -> float | None:
    """The median, without its sign, of the budgets that were measured."""
    errors = [abs(error) for point in curve.points if (error := error_of(point)) is not None]
    return median(errors) if errors else None


def as_dict(curve: Curve) -> dict[str, Any]:
    """For programs."""
    return {
        "points": [
            asdict(point) | {"works": point.works, "gain_per_gib": curve.gain_per_gib(point)}
            for point in curve.points
        ],
        "resident_from_bytes": curve.resident_bytes,
        "draft_pays_until_bytes": curve.draft_pays_until,
        "typical_error": typical_error(curve),
    }
