"""The division of a budget between target and draft, by their needs.

Pure arithmetic: it knows no runtime and no machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from edgespec.errors import BudgetError
from edgespec.memory.budget import (
    COPIES,
    MIB,
    MemoryPlan,
    MemoryRow,
    beside_later,
    least_bytes,
    plan_memory,
)
from edgespec.memory.needs import ModelNeeds, affordable
from edgespec.memory.pinning import SegmentSize
from edgespec.settings.config import USUAL_DRAFT_MAX

HEADROOM_BYTES = 4 * MIB
HEADROOM_SHARE = 0.01
"""Headroom beyond HEADROOM_BYTES as a share of the other rows; it covers what no row names: graphs,
threads, buffers of Python."""
PROCESS_SPREAD_BYTES = 5 << 19
"""Most bytes by which a process's memory before loading may exceed that of an earlier one: arenas
of Python, and pages of libraries that happen to be mapped."""
LARGER_TREE_COST = 0.02
"""Largest share of the score that a plan loses for larger trees, which few texts need."""


def plan_models(
    budget_bytes: int,
    process_bytes: int,
    target: ModelNeeds,
    draft: ModelNeeds | None = None,
    *,
    score: Callable[[MemoryPlan], float],
    enforced: bool = True,
    others: Sequence[MemoryRow] = (),
    adjustable: bool = False,
) -> MemoryPlan:
    """Divide the budget of a process that takes `process_bytes` besides its models.

    Batches are the largest that the budget affords, otherwise the smallest; the tree size is that
    of the plan with the highest `score`. `smallest_bytes` does not depend on the budget: it is
    computed from the smallest batches and trees, with PROCESS_SPREAD_BYTES, because the next
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
    rows = [_process_row(process_bytes), *others]
    smallest = _divide(_UNLIMITED, rows, models, least, enforced).smallest_bytes
    margin_bytes = math.ceil((1 + HEADROOM_SHARE) * PROCESS_SPREAD_BYTES)
    named = smallest + margin_bytes
    if budget_bytes >= smallest:
        tried_bytes = budget_bytes
        if adjustable:
            weights = sum(segment.slot_bytes for segment in target.cuts[0])
            tried_bytes = min(budget_bytes, smallest + weights // 2)
        plans = []
        for n_nodes in {batch.max_nodes for batch in target.batches}:
            for choice in _choices(models, n_nodes, tried_bytes):
                with suppress(BudgetError):
                    plans.append(_divide(tried_bytes, rows, models, choice, enforced))
                    break
        if not plans and any(batch.is_last_resort for batch in target.batches):
            with suppress(BudgetError):
                plans.append(_divide(tried_bytes, rows, models, least, enforced))
        if plans:
            best = best_tree_size(plans, score)
            if tried_bytes < budget_bytes:
                best = _divide(budget_bytes, rows, models, best.batches, enforced)
            return replace(best, smallest_bytes=named)
    divided = _divide(budget_bytes, rows, models, least, enforced, margin_bytes)
    return replace(divided, smallest_bytes=named)


def _choices(
    models: Mapping[str, ModelNeeds], n_nodes: int, budget_bytes: int
) -> list[dict[str, int]]:
    """Choices of batch index by owner for `n_nodes` nodes: the largest affordable, the smallest."""
    affords, least = {}, {}
    for owner, needs in models.items():
        batches = [
            (index, batch.nbytes)
            for index, batch in enumerate(needs.batches)
            if (owner == "draft" or batch.max_nodes == n_nodes) and not batch.is_last_resort
        ]
        affords[owner] = batches[affordable([n for _, n in batches], budget_bytes)][0]
        least[owner] = batches[-1][0]
    return [affords, least]


_UNLIMITED = 1 << 62


def _process_row(nbytes: int) -> MemoryRow:
    return MemoryRow("process", "interpreter and libraries", nbytes)


def _divide(
    budget_bytes: int,
    others: Sequence[MemoryRow],
    models: Mapping[str, ModelNeeds],
    choice: Mapping[str, int],
    enforced: bool,
    margin_bytes: int = 0,
) -> MemoryPlan:
    """The plan with the chosen batches. The draft is loaded first, then the target."""
    target, batch = models["target"], choice["target"]
    fixed, paged = target.common_rows(batch), target.paged_rows(batch)
    rows = [*others]
    if "draft" in models:
        draft = models["draft"]
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
    plan = plan_memory(
        budget_bytes,
        rows,
        target.cuts,
        target.resident,
        paged,
        enforced,
        margin_bytes,
        target.experts,
    )
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
        cuts.append(tuple(_with_copy(segment, copies, of_slices) for segment in cut))
    return replace(target, cuts=tuple(cuts))


def _with_copy(
    segment: SegmentSize, copies: Mapping[str, int], of_slices: Mapping[str, int]
) -> SegmentSize:
    """`segment` with the size of its copies; `of_slices` are the bytes of all slices by matrix."""
    nbytes = sum(copies.get(name, 0) for name in segment.weights)
    if segment.slice_of:
        nbytes = nbytes * segment.nbytes // of_slices[segment.slice_of]
    return replace(segment, copy_bytes=nbytes)


def best_tree_size(plans: Sequence[MemoryPlan], score: Callable[[MemoryPlan], float]) -> MemoryPlan:
    """The plan for the largest trees that has about the highest score, of plans that differ in
    `max_nodes`.

    A resident target reads nothing, so its trees are small: the default size is enough.
    """
    resident = sorted((plan for plan in plans if not plan.paged), key=lambda plan: plan.max_nodes)
    if resident:
        usual = [plan for plan in resident if plan.max_nodes <= 1 + USUAL_DRAFT_MAX]
        return (usual or resident[:1])[-1]
    scores = [score(plan) for plan in plans]
    least = (1 - LARGER_TREE_COST) * max(scores)
    good = [plan for plan, its in zip(plans, scores, strict=True) if its >= least]
    return max(good, key=lambda plan: plan.max_nodes)
