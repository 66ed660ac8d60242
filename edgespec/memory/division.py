"""The division of a budget between target and draft, by their needs.

Pure arithmetic: it knows no runtime and no machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from edgespec.errors import BudgetError, setting
from edgespec.memory.budget import (
    COPIES,
    MIB,
    MemoryPlan,
    MemoryRow,
    beside_later,
    cut_for,
    divided,
    fixed_rows,
    least_bytes,
    plan_memory,
)
from edgespec.memory.cgroups import UNLIMITED
from edgespec.memory.needs import ModelNeeds, affordable
from edgespec.memory.pinning import SegmentSize, pinning_order

HEADROOM_BYTES = 4 * MIB
HEADROOM_SHARE = 0.01
"""Headroom beyond HEADROOM_BYTES as a share of the other rows; it covers what no row names: graphs,
threads, buffers of Python."""
PROCESS_SPREAD_BYTES = 8 * MIB
"""Most bytes by which a process's memory before loading may exceed that of an earlier one: 3 MiB
were measured where Python's bytecode is compiled first, and as much again of libraries' pages."""


def plan_models(
    budget_bytes: int,
    process_bytes: int,
    target: ModelNeeds,
    draft: ModelNeeds | None = None,
    *,
    choose: Callable[[Sequence[MemoryPlan]], MemoryPlan] = itemgetter(0),
    others: Sequence[MemoryRow] = (),
    adjustable: bool = False,
) -> MemoryPlan:
    """Divide the budget of a process that takes `process_bytes` besides its models.

    Batches are the largest that the budget affords, otherwise the smallest; of plans that differ in
    `max_nodes` it is that which `choose` takes. `smallest_bytes` does not depend on the budget: it
    is computed from the smallest batches and trees, with PROCESS_SPREAD_BYTES, because the next
    process may take more than this one. `others` are rows of neither model. Weights of an
    `adjustable` target are paged, and batches are those of a budget for half of them, as they stay
    when the budget changes. Raises BudgetError.
    """
    adjustable = adjustable and bool(target.cuts)
    if adjustable:
        target = replace(target, resident=None)
    models = {"target": target} | ({"draft": draft} if draft else {})
    shared = (row for needs in models.values() for row in needs.shared)
    others = [*dict.fromkeys(shared), *others]
    least = {owner: len(needs.batches) - 1 for owner, needs in models.items()}
    rows = [MemoryRow("process", "interpreter and libraries", process_bytes), *others]
    margin = MemoryRow("process", "margin", PROCESS_SPREAD_BYTES)
    smallest, named = (
        _divide(UNLIMITED, some, models, least).smallest_bytes for some in (rows, [*rows, margin])
    )
    if budget_bytes < smallest:
        rows.append(margin)  # so that the error names the budget for a larger process, too
    tried_bytes = budget_bytes
    if adjustable:
        weights = sum(segment.slot_bytes for segment in target.cuts[0])
        tried_bytes = min(budget_bytes, smallest + weights // 2)
    plans = []
    for n_nodes in {batch.max_nodes for batch in target.batches}:
        *choices, lending = _choices(models, n_nodes, tried_bytes)
        for choice in choices:
            with suppress(BudgetError):
                plans.append(_divide(tried_bytes, rows, models, choice))
                break
        if plans and plans[-1].paged:
            with suppress(BudgetError):
                plans[-1] = _divide(tried_bytes, rows, models, lending)
    best = choose(plans or [_divide(tried_bytes, rows, models, least)])
    if tried_bytes < budget_bytes:
        best = _divide(budget_bytes, rows, models, best.batches)
    return replace(best, smallest_bytes=named)


def _choices(
    models: Mapping[str, ModelNeeds], n_nodes: int, budget_bytes: int
) -> list[dict[str, int]]:
    """Choices of batch index by owner for `n_nodes` nodes: the largest affordable, the smallest,
    and the largest affordable if weights have what it lends."""
    affords, least, lending = {}, {}, {}
    for owner, needs in models.items():
        batches = [
            (index, batch)
            for index, batch in enumerate(needs.batches)
            if (owner == "draft" or batch.max_nodes == n_nodes) and not batch.is_last_resort
        ]
        affords[owner] = batches[affordable([b.nbytes for _, b in batches], budget_bytes)][0]
        least[owner], smallest = batches[-1]
        more = [batch.kept_bytes - smallest.kept_bytes for _, batch in batches]
        is_lent = any(row.is_lent for row in batches[0][1].rows)
        lending[owner] = batches[affordable(more, budget_bytes)][0] if is_lent else affords[owner]
    return [affords, least, lending]


def _divide(
    budget_bytes: int,
    others: Sequence[MemoryRow],
    models: Mapping[str, ModelNeeds],
    choice: Mapping[str, int],
) -> MemoryPlan:
    """The plan with the chosen batches. The draft is loaded first, then the target."""
    target, batch = models["target"], choice["target"]
    fixed, paged = target.common_rows(batch), target.paged_rows(batch)
    rows = [*others]
    if draft := models.get("draft"):
        target = _with_copies(target, draft.copies)
        rows += draft.common_rows(choice["draft"])
        least = least_bytes([*rows, *fixed], target.cuts, target.resident, paged, target.experts)
        early = sum(row.nbytes for row in rows if not row.is_late)
        rows += beside_later(draft.resident or (), least - early)
        if draft.copies:
            rows.append(MemoryRow("draft", COPIES, sum(draft.copies.values())))
    rows += fixed
    headroom = HEADROOM_BYTES + int(HEADROOM_SHARE * sum(row.nbytes for row in rows))
    rows.append(MemoryRow("process", "headroom", headroom))
    plan = plan_memory(budget_bytes, rows, target.cuts, target.resident, paged, target.experts)
    computed = target.batches[batch]
    return replace(
        plan,
        batches=dict(choice),
        batch_size=computed.batch_size,
        max_nodes=computed.max_nodes,
    )


def _with_copies(target: ModelNeeds, copies: Mapping[str, int]) -> ModelNeeds:
    """The target's needs, with the sizes of a draft's copies of its segments."""
    if not copies:
        return target
    cuts = []
    for cut in target.cuts:
        of_slices: Counter[str] = Counter()
        for segment in cut:
            of_slices[segment.slice_of] += segment.nbytes
        sizes = [sum(copies.get(name, 0) for name in segment.weights) for segment in cut]
        wholes = [of_slices[s.slice_of] if s.slice_of else s.nbytes for s in cut]
        copied = zip(cut, sizes, wholes, strict=True)
        cuts.append(tuple(replace(s, copy_bytes=n * s.nbytes // whole) for s, n, whole in copied))
    return replace(target, cuts=tuple(cuts))


# Another budget for loaded models: only pinned segments, the ring and the cache of experts change

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
        way = "load it with the smaller budget"
        if not plan.paged or not cuts:
            way = f"its weights stay; load it with {setting.adjustable_budget(True)}"
        raise BudgetError(
            f"the memory budget of {budget_bytes // MIB} MiB is too small for the loaded model, "
            f"which needs at least {-(-smallest // MIB)} MiB: {way}",
            smallest,
        )
    if not plan.paged or not cuts:
        return replace(plan, budget_bytes=budget_bytes)
    room = budget_bytes - sum(row.nbytes for row in fixed_rows(plan))
    if not plan.n_kept and (cut := cut_for(cuts, room, plan.experts)) > plan.cut:
        segments, order = tuple(cuts[cut]), pinning_order(cuts[cut])
        plan = replace(plan, cut=cut, segments=segments, order=order, pinned=frozenset())
    return divided(plan, budget_bytes)
