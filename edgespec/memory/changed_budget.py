"""Divides a changed budget of loaded models, and says what to pin next on the way there.

Pure arithmetic on sizes. Contexts and drafts stay as they were loaded; only pinned segments, the
ring and the cache of experts change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from edgespec.errors import BudgetError
from edgespec.memory.budget import (
    EXPERT_CACHE,
    MIB,
    PINNED,
    RING,
    MemoryPlan,
    MemoryRow,
    least_bytes,
    plan_memory,
)
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import (
    MIN_RING_SLOTS,
    RING_SLOTS,
    SegmentSize,
    ring_for,
    spread_evenly,
)
from edgespec.ports.adjusting import ContextSize, UnfilledShares, WeightShares

SHARED = "segments that a draft shares"
"""Label of the pinned segments that stay, while another budget is divided."""
N_STEPS, LEAST_STEP_CELLS = 16, 256
"""Steps in which a context takes its memory from the weights, and least cells of a step."""
GROWTH_SHARE = 0.125
"""Share of the weights that is pinned between two passes, until nothing is missing."""


def smallest_budget(
    plan: MemoryPlan, cuts: Sequence[Sequence[SegmentSize]], experts: ExpertSizes | None
) -> int:
    """The smallest budget that models loaded by `plan` can be moved to."""
    if not plan.paged or not cuts:
        return plan.planned_bytes
    return least_bytes(_fixed(plan), _cuts_of(plan, cuts), None, (), experts)


def adjusted(
    plan: MemoryPlan,
    budget_bytes: int,
    cuts: Sequence[Sequence[SegmentSize]],
    experts: ExpertSizes | None = None,
) -> MemoryPlan:
    """The plan with another budget for models that are loaded by `plan`.

    `cuts` are the segmentations of the target, coarsest first; without any, or without paging, its
    weights stay. The cut stays unless its ring would take too much. What a draft shares stays
    pinned. Raises BudgetError.
    """
    smallest = smallest_budget(plan, cuts, experts)
    if budget_bytes < smallest:
        raise BudgetError(_error_text(plan, budget_bytes, smallest, bool(cuts)), smallest)
    if not plan.paged or not cuts:
        return replace(plan, budget_bytes=budget_bytes)
    fixed = _fixed(plan)
    found = plan_memory(budget_bytes, fixed, _cuts_of(plan, cuts), experts=experts)
    if plan.shared:
        found = _with_shared(plan, found)
    elif found.cut < plan.cut:
        with suppress(BudgetError):
            same = plan_memory(budget_bytes, fixed, [cuts[plan.cut]], experts=experts)
            found = replace(same, cut=plan.cut)
    return replace(
        plan,
        budget_bytes=budget_bytes,
        rows=found.rows,
        segments=found.segments,
        pinned=found.pinned,
        ring_bytes=found.ring_bytes,
        expert_bytes=found.expert_bytes,
        cut=found.cut,
    )


def shares_of(plan: MemoryPlan) -> WeightShares:
    """The division of the memory for weights in a plan."""
    return WeightShares(plan.cut, plan.pinned, plan.ring_bytes, plan.expert_bytes)


def while_unfilled(plan: MemoryPlan, context: ContextSize) -> Sequence[UnfilledShares]:
    """Divisions of the memory while the context has cells without content, whose memory holds
    weights: pinned segments, or experts.

    Each has all that those for more cells have, so that nothing is read again as a text grows.
    There are none where nothing is streamed.
    """
    if len(plan.pinned) == len(plan.segments) and plan.experts is None:
        return []
    shares, found = shares_of(plan), list[UnfilledShares]()
    step = max(LEAST_STEP_CELLS, -(-context.n_cells // N_STEPS))
    room, unfilled = -context.rest_bytes, range(step, context.n_cells, step)
    n_before = context.n_cells
    for n_cells in reversed(unfilled):
        room += (n_before - n_cells) * context.cell_bytes
        n_before = n_cells
        if plan.experts is not None:
            expert_bytes = min(plan.experts.room_bytes, plan.expert_bytes + max(0, room))
            shares = replace(shares, expert_bytes=expert_bytes)
        else:
            left = [i for i in range(len(plan.segments)) if i not in shares.pinned]
            sizes = [plan.segments[i].slot_bytes for i in left]
            further = spread_evenly(sizes, room)
            room -= sum(sizes[n] for n in further)
            pinned = shares.pinned.union(left[n] for n in further)
            ring_bytes = shares.ring_bytes if len(pinned) < len(plan.segments) else 0
            shares = replace(shares, pinned=pinned, ring_bytes=ring_bytes)
        found.insert(0, UnfilledShares(n_cells, shares))
    return found


def next_shares(sizes: Sequence[int], held: frozenset[int], wanted: WeightShares) -> WeightShares:
    """The next step towards `wanted` for segments with slots of `sizes` bytes, of which `held` are
    pinned.

    Segments that are not wanted are let go at once; those that are missing come in portions, the
    largest first, because a ring for the others has less room. It never takes more memory than
    `wanted`.
    """
    kept = held & wanted.pinned
    missing = sorted(wanted.pinned - kept, key=lambda i: -sizes[i])
    portion, most_bytes = 0, GROWTH_SHARE * sum(sizes)
    while missing:
        room = wanted.ring_bytes + sum(sizes[i] for i in missing)
        streamed = [size for i, size in enumerate(sizes) if i not in kept]
        fits = ring_for(streamed, MIN_RING_SLOTS) <= room
        if fits and portion and portion + sizes[missing[0]] > most_bytes:
            ring_bytes = min(ring_for(streamed, RING_SLOTS), room)
            return replace(wanted, pinned=kept, ring_bytes=ring_bytes)
        portion += sizes[missing[0]]
        kept |= {missing.pop(0)}
    return wanted


def _fixed(plan: MemoryPlan) -> list[MemoryRow]:
    """The rows of `plan` that stay, with one for the segments that a draft shares."""
    rows = [row for row in plan.rows if row.what not in (RING, PINNED, EXPERT_CACHE)]
    if nbytes := sum(plan.segments[i].slot_bytes for i in plan.shared):
        rows.append(MemoryRow("target", SHARED, nbytes))
    return rows


def _cuts_of(
    plan: MemoryPlan, cuts: Sequence[Sequence[SegmentSize]]
) -> Sequence[Sequence[SegmentSize]]:
    """The segmentations to choose from; where a draft shares segments, what is left of theirs."""
    if not plan.shared:
        return cuts
    return [[replace(plan.segments[i], copy_bytes=0) for i in _left(plan)]]


def _left(plan: MemoryPlan) -> list[int]:
    """Indices of the segments that no draft shares."""
    return [i for i in range(len(plan.segments)) if i not in plan.shared]


def _with_shared(plan: MemoryPlan, found: MemoryPlan) -> MemoryPlan:
    """The division `found` for what is left beside the segments that a draft shares."""
    left = _left(plan)
    pinned = plan.shared.union(left[i] for i in found.pinned)
    nbytes = sum(plan.segments[i].slot_bytes for i in plan.shared)
    rows = (
        replace(row, nbytes=row.nbytes + nbytes) if row.what == PINNED else row
        for row in found.rows
        if row.what != SHARED
    )
    segments = (
        segment if i in plan.shared else replace(segment, copy_bytes=0)
        for i, segment in enumerate(plan.segments)
    )
    return replace(found, rows=tuple(rows), segments=tuple(segments), pinned=pinned, cut=plan.cut)


def _error_text(plan: MemoryPlan, budget_bytes: int, smallest: int, has_cuts: bool) -> str:
    said = (
        f"the memory budget of {budget_bytes / MIB:.0f} MiB is too small for what is loaded, which "
        f"needs at least {-(-smallest // MIB)} MiB"
    )
    if plan.paged and has_cuts:
        return f"{said} with its context and batches: load again with the smaller budget"
    why = "cannot be moved" if plan.paged else "fits whole, so that its weights stay in memory"
    return f"{said}: the target {why}; load it with adjustable_budget=True (--adjustable-budget)"
