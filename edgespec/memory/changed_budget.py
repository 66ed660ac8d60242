"""Another budget for loaded models, whose contexts and drafts stay as they are.

Pure arithmetic on sizes: only pinned segments, the ring and the cache of experts change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from edgespec.errors import BudgetError
from edgespec.memory.budget import (
    MIB,
    MemoryPlan,
    MemoryRow,
    cut_for,
    divided,
    fixed_rows,
    least_bytes,
)
from edgespec.memory.pinning import SegmentSize, pinning_order

Cuts = Sequence[Sequence[SegmentSize]]
"""Segmentations of a target, coarsest first; none if its weights stay."""


def smallest_budget(plan: MemoryPlan, cuts: Cuts) -> int:
    """The smallest budget that models loaded by `plan` can be moved to."""
    if not plan.paged or not cuts:
        return plan.planned_bytes
    kept = frozenset(chain.from_iterable(plan.order[: plan.n_kept]))
    if kept:
        cuts = [[segment for i, segment in enumerate(plan.segments) if i not in kept]]
    nbytes = sum(plan.segments[i].pinning_bytes for i in kept)
    rows = [*fixed_rows(plan), MemoryRow("target", "segments that a draft shares", nbytes)]
    return least_bytes(rows, cuts, None, (), plan.experts)


def adjusted(plan: MemoryPlan, budget_bytes: int, cuts: Cuts) -> MemoryPlan:
    """The plan with another budget for models that are loaded by `plan`.

    The cut stays unless its ring would take too much. What a draft shares stays pinned. Raises
    BudgetError.
    """
    smallest = smallest_budget(plan, cuts)
    if budget_bytes < smallest:
        raise BudgetError(_error_text(plan, budget_bytes, smallest, bool(cuts)), smallest)
    if not plan.paged or not cuts:
        return replace(plan, budget_bytes=budget_bytes)
    room = budget_bytes - sum(row.nbytes for row in fixed_rows(plan))
    if not plan.n_kept and (cut := cut_for(cuts, room, plan.experts)) > plan.cut:
        segments, order = tuple(cuts[cut]), pinning_order(cuts[cut])
        plan = replace(plan, cut=cut, segments=segments, order=order, pinned=frozenset())
    return divided(plan, budget_bytes)


def _error_text(plan: MemoryPlan, budget_bytes: int, smallest: int, has_cuts: bool) -> str:
    said = (
        f"the memory budget of {budget_bytes / MIB:.0f} MiB is too small for what is loaded, which "
        f"needs at least {-(-smallest // MIB)} MiB"
    )
    if plan.paged and has_cuts:
        return f"{said} with its context and batches: load again with the smaller budget"
    why = "cannot be moved" if plan.paged else "fits whole, so that its weights stay in memory"
    return f"{said}: the target {why}; load it with `adjustable_budget=True`"
