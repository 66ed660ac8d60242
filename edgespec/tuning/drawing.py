"""Draws tokens a second over memory: plans every budget, measures one, predicts and runs others.

What is drawn, and how it is shown, is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec import theory
from edgespec.config import LoadSettings
from edgespec.errors import BudgetError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import Choice, Prediction, Speeds, calibrated, compute_places
from edgespec.tuning.curve import GIB, Curve, Point
from edgespec.tuning.curve_settings import LEAST_GAIN, Ranked, alone_of, ranked
from edgespec.tuning.measurements import Refused, Written
from edgespec.tuning.measuring import (
    PASS_SIZES,
    STARTING_S,
    WRITTEN_TOKENS,
    Lab,
    Measured,
    Say,
    Wanted,
    measure,
)
from edgespec.tuning.report import choice_line

ANY_BYTES = 1 << 50
LEAST_ROUNDS = 3
"""Of each text, for which there has to be time."""
READS_ENOUGH = 1 / 8
"""Of what the smallest budget's passes read."""
PATIENCE = 1.5
"""Times that, after which a run is cut short."""
LEARNING_SHARE = 0.3
"""Of the time that is left, for a run that tells how weights compute that are not paged."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """One that works, and who gets which bytes of it."""

    load: LoadSettings
    plan: MemoryPlan
    without: MemoryPlan | Refused
    """Without the draft."""


def draw(lab: Lab, wanted: Wanted, budgets: Sequence[int], say: Say = lambda _: None) -> Curve:
    """Plan every budget, measure the pair at a middle one, choose the settings that are predicted
    to be best at each, and run as many as there is time for, first where the curve bends. Raises
    BudgetError where none of them works."""
    budgets = sorted(set(budgets))
    asked = [_with_budget(wanted, nbytes) for nbytes in (*budgets, ANY_BYTES)]
    *plans, unlimited = _plans(lab, asked, wanted.usual)
    alone = _plans(lab, asked[:-1], alone_of(wanted.usual))
    working = {
        nbytes: _Budget(load, plan, without)
        for nbytes, load, plan, without in zip(budgets, asked, plans, alone, strict=False)
        if isinstance(plan, MemoryPlan)
    }
    if not working:
        refused = next(plan for plan in plans if isinstance(plan, Refused))
        raise BudgetError(
            f"no budget of --budgets works: {refused.message}", refused.smallest_bytes
        )
    base = _base(working)
    say(f"the pair at {base / GIB:.2f} GiB")
    measured = measure(lab, replace(wanted, load=working[base].load), say)
    by_kind, runs = {measured.plan.paged: measured.speeds}, {base: measured.first}
    for nbytes, budget in working.items():
        if budget.plan.paged not in by_kind:
            runs |= _learn(lab, measured, nbytes, budget, by_kind, say)
    found = {
        nbytes: ranked(wanted, budget.plan, budget.without, by_kind)
        for nbytes, budget in working.items()
    }
    points = _predicted(lab, wanted, working, found)
    for nbytes, run in runs.items():
        if points[nbytes].choice == wanted.usual:
            points[nbytes] = _with_run(points[nbytes], run, is_fitted=True)
    seconds = {
        nbytes: _run_s(measured, working[nbytes].plan, best.best)
        for nbytes, best in found.items()
        if best is not None and points[nbytes].measured is None
    }
    bends = _bends(points)
    for nbytes in sorted(seconds, key=lambda nbytes: (nbytes not in bends, seconds[nbytes])):
        points[nbytes] = _confirmed(
            lab, measured, working[nbytes], points[nbytes], seconds[nbytes], say
        )
    too_small = {
        nbytes: Point(nbytes, plan.smallest_bytes)
        for nbytes, plan in zip(budgets, plans, strict=True)
        if isinstance(plan, Refused)
    }
    all_points = points | too_small
    resident = isinstance(unlimited, MemoryPlan) and not unlimited.paged
    resident_bytes = unlimited.planned_bytes if isinstance(unlimited, MemoryPlan) else 0
    return Curve(
        measured,
        tuple(all_points[nbytes] for nbytes in budgets),
        resident_bytes if resident else None,
    )


def _base(working: Mapping[int, _Budget]) -> int:
    """The budget that tells most of the others in the time there is: of those that page the largest
    whose passes still wait for storage as others' do. Shorter passes write more of the texts, which
    are guessed better as they go on."""
    reads = {
        nbytes: budget.plan.bytes_per_pass
        for nbytes, budget in working.items()
        if budget.plan.paged
    }
    if not reads:
        return [*working][len(working) // 2]
    return max(nbytes for nbytes, n in reads.items() if n >= READS_ENOUGH * max(reads.values()))


def _learn(
    lab: Lab,
    measured: Measured,
    nbytes: int,
    budget: _Budget,
    by_kind: dict[bool, Speeds],
    say: Say,
) -> dict[int, Written]:
    """How weights compute that are paged, or not, as in this budget, and the run that told it, if
    there is time to load them and to run."""
    usual, plan = measured.wanted.usual, budget.plan
    if lab.left_s <= 0 or _load_s(measured, plan) > lab.left_s:
        return {}
    say(f"a run at {nbytes / GIB:.2f} GiB")
    load, most_s = usual.load(budget.load), LEARNING_SHARE * lab.left_s
    run = lab.write(load, usual.engine, WRITTEN_TOKENS, PASS_SIZES, most_s=most_s)
    known = next(iter(by_kind.values()))
    speeds = replace(known, compute={usual.threads: compute_places(run.passes)})
    by_kind[plan.paged] = calibrated(usual, plan, speeds, run)
    return {nbytes: run}


def _predicted(
    lab: Lab,
    wanted: Wanted,
    working: Mapping[int, _Budget],
    found: Mapping[int, Ranked | None],
) -> dict[int, Point]:
    """Each budget with its best settings, of which it is planned that they fit."""
    others = {
        nbytes: (best.choice.load(working[nbytes].load), best.choice.engine)
        for nbytes, best in found.items()
        if best and best.choice != wanted.usual
    }
    plans = dict(zip(others, lab.plans([*others.values()]) if others else [], strict=True))
    points = {}
    for nbytes, best in found.items():
        plan = working[nbytes].plan
        point = Point(nbytes, resident=not plan.paged, bytes_per_pass=plan.bytes_per_pass)
        if best is not None:
            fits = best.choice == wanted.usual or _keeps_text(plans[nbytes], plan)
            point = replace(
                point,
                choice=best.choice if fits else wanted.usual,
                predicted=(best.best if fits else best.usual).tokens_per_s,
                predicted_usual=best.usual.tokens_per_s,
                predicted_drafted=best.drafted,
                predicted_alone=best.alone,
            )
        points[nbytes] = point
    return points


def _keeps_text(plan: MemoryPlan | Refused, usual: MemoryPlan) -> bool:
    """A prompt that is read in batches of another size can continue in another way."""
    return isinstance(plan, MemoryPlan) and plan.batch_size == usual.batch_size


def _bends(points: Mapping[int, Point]) -> set[int]:
    """Budgets from which on other settings are best, or nothing is read any more."""
    kinds = [(point.choice, point.resident) for point in points.values()]
    steps = zip([*points][1:], kinds[1:], kinds, strict=False)
    return {nbytes for nbytes, now, before in steps if now != before}


def _run_s(measured: Measured, plan: MemoryPlan, expected: Prediction) -> float:
    """Of a run that is worth comparing: as many texts as predictions rest on, some rounds of each.
    One text says nothing, as they differ sixfold in how well they are guessed."""
    prompt_s = max(expected.read_s, expected.compute_s)
    round_s = expected.tokens_per_pass / max(expected.tokens_per_s, 1e-9)
    text_s = prompt_s + LEAST_ROUNDS * round_s
    return STARTING_S + _load_s(measured, plan) + measured.n_texts * text_s


def _confirmed(
    lab: Lab, measured: Measured, budget: _Budget, point: Point, run_s: float, say: Say
) -> Point:
    """A run with the chosen settings, if there is time for one, and with the defaults beside
    others: what does not gain there is not chosen."""
    usual, choice = measured.wanted.usual, point.choice
    assert choice is not None
    tried = [choice] if choice == usual else [usual, choice]
    if lab.left_s < len(tried) * run_s:
        return point
    most_s, runs = PATIENCE * (run_s - STARTING_S), []
    for one in tried:
        say(f"a run at {point.budget_bytes / GIB:.2f} GiB, {choice_line(one, usual)}")
        load = one.load(budget.load)
        runs.append(
            lab.write(load, one.engine, WRITTEN_TOKENS, most_s=most_s, n_texts=measured.n_texts)
        )
    if choice != usual and runs[1].tokens_per_s <= (1 + LEAST_GAIN) * runs[0].tokens_per_s:
        point, runs = replace(point, choice=usual, predicted=point.predicted_usual), runs[:1]
    return _with_run(point, runs[-1])


def _with_run(point: Point, run: Written, is_fitted: bool = False) -> Point:
    return replace(point, measured=run.tokens_per_s, peak_bytes=run.peak_bytes, is_fitted=is_fitted)


def _load_s(measured: Measured, plan: MemoryPlan) -> float:
    """What filling memory takes at least, as fast as the disk is read."""
    if not measured.reads:
        return measured.first.load_s
    nbytes = plan.pinned_bytes if plan.paged else sum(segment.nbytes for segment in plan.segments)
    return theory.pass_seconds(nbytes + plan.expert_bytes, measured.reads[0].bytes_per_s)


def _with_budget(wanted: Wanted, nbytes: int) -> LoadSettings:
    return LoadSettings.model_validate(wanted.load.as_given() | {"memory_budget": nbytes})


def _plans(lab: Lab, loads: Sequence[LoadSettings], choice: Choice) -> list[MemoryPlan | Refused]:
    return list(lab.plans([(choice.load(load), choice.engine) for load in loads]))
