"""Predicts the speed of a pair on this machine, and of changes that would raise it.

Plans the pair again with one change at a time; loads no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from edgespec.errors import BudgetError, UsageError
from edgespec.memory.budget import MemoryPlan
from edgespec.settings import options
from edgespec.settings.config import LoadSettings
from edgespec.tuning.pair_figures import PairFigures

GIB = 1 << 30
MIN_CONTEXT, MIN_BATCH = 512, 32
"""Smallest context and batch size to suggest, in tokens."""

FITS = "computing limits the speed: the target fits into memory"

Planner = Callable[[LoadSettings], MemoryPlan]


@dataclass(frozen=True, slots=True)
class Speedup:
    """One change, and the predicted speed with it."""

    change: str
    tokens_per_s: float | None
    """None: nothing is read any more, and compute limits the speed."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted speed of a pair, its limit, and changes that raise it."""

    plan: MemoryPlan
    disk_bytes_per_s: float | None
    """None if nothing is read."""
    tokens_per_pass: float
    limit: str
    tokens_per_s: float | None
    speedups: tuple[Speedup, ...]
    """The most helpful first."""


def forecast(
    settings: LoadSettings,
    planner: Planner,
    disk_bytes_per_s: float | None,
    figures: PairFigures,
) -> Forecast:
    """Predict the pair's speed from its `figures`, unchanged and with one change at a time.

    Raises the errors of planning.
    """
    plan = planner(settings)

    def rate(changed: MemoryPlan, disk_factor: float = 1.0, **better: float) -> float | None:
        disk = disk_bytes_per_s and disk_factor * disk_bytes_per_s
        found = figures.predict(changed, disk, **better)
        is_known = found.read_s > 0 or (found.compute_s > 0 and changed.paged == plan.paged)
        return found.tokens_per_s if is_known else None

    speedups = [
        Speedup("a disk twice as fast", rate(plan, disk_factor=2)),
        Speedup("a draft that yields one token more per pass", rate(plan, more_tokens=1)),
        Speedup("computing ten times as fast, as a GPU may be", rate(plan, compute_factor=10)),
    ]
    for change, changed in _changes(settings, plan):
        with suppress(BudgetError, UsageError):  # does not fit, or does not apply to these models
            speedups.append(Speedup(change, rate(planner(changed))))
    now = rate(plan)
    better = [one for one in speedups if now is not None and _gain(one, now) > 0.01]
    better.sort(key=lambda one: -_gain(one, now or 1.0))
    limit = figures.predict(plan, disk_bytes_per_s).limit if plan.paged else FITS
    return Forecast(plan, disk_bytes_per_s, figures.tokens_per_pass, limit, now, tuple(better))


def _changes(settings: LoadSettings, plan: MemoryPlan) -> list[tuple[str, LoadSettings]]:
    """Descriptions of changes, and the settings with each of them."""

    def changed(**update: object) -> LoadSettings:
        return settings.model_copy(update=update)

    found = [("another GiB of memory", changed(memory_budget=plan.budget_bytes + GIB))]
    if (ctx_size := plan.ctx_size or settings.ctx_size) >= 2 * MIN_CONTEXT:
        half = ctx_size // 2
        found.append((f"half the context (--ctx-size {half})", changed(ctx_size=half)))
    if plan.batch_size >= 2 * MIN_BATCH:
        n = max(MIN_BATCH, plan.batch_size // 4)
        name = f"prompts in batches of {n} tokens (-b {n}), which can change the text"
        found.append((name, changed(batch_size=n)))
    for runtime, declared in options.declared().items():
        for change, thriftier in declared.of(settings.options.get(runtime)).thriftier().items():
            found.append((change, changed(options={**settings.options, runtime: thriftier})))
    return found


def _gain(one: Speedup, now: float) -> float:
    return float("inf") if one.tokens_per_s is None else one.tokens_per_s / now - 1


def speedup_lines(speedups: Sequence[Speedup]) -> list[str]:
    """Lines about helpful changes."""
    return [f"  {one.change}: {_reached(one)}" for one in speedups]


def _reached(one: Speedup) -> str:
    if one.tokens_per_s is None:
        return "all weights fit, and computing limits the speed"
    return f"{one.tokens_per_s:.2f} tokens/s"
