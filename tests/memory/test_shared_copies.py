"""A draft without copies of what its target pins: what the plan pins, and what it saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import BudgetError
from edgespec.memory.budget import COPIES, MIB, MemoryPlan, MemoryRow
from edgespec.memory.division import adjusted, plan_models, smallest_budget
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.memory.pinning import SegmentSize

LAYER, COPY, N_LAYERS = 8 * MIB, 2 * MIB, 20
SLICES = 4
"""Slices of each layer's matrix in the finer cut."""
HEAD = tuple(SegmentSize(f"head {n}", LAYER, LAYER, "head", ("head",)) for n in range(8))
LAYERS = tuple(SegmentSize(f"{n}", LAYER, LAYER, "", (f"{n}",)) for n in range(N_LAYERS))
FINE = tuple(
    SegmentSize(f"{n}.{part}", LAYER // SLICES, LAYER // SLICES, f"{n}", (f"{n}",))
    for n in range(N_LAYERS)
    for part in range(SLICES)
)
TARGET = ModelNeeds(
    fixed=(MemoryRow("target", "KV cache", 10 * MIB),),
    batches=(BatchNeeds(1, ()),),
    resident=(MemoryRow("target", "weights", LAYER * (N_LAYERS + len(HEAD))),),
    cuts=((*LAYERS, *HEAD),),
)
SLICED = replace(TARGET, cuts=(FINE,), resident=None)
COPIED = {f"{n}": COPY for n in range(N_LAYERS)}
WEIGHTS = MemoryRow("draft", "weights", 5 * MIB)
SHARING = ModelNeeds((), (BatchNeeds(1, ()),), (WEIGHTS,), copies=COPIED)
COPYING = replace(
    SHARING, resident=(replace(WEIGHTS, nbytes=WEIGHTS.nbytes + sum(COPIED.values())),), copies={}
)


def planned(
    budget_mib: float, target: ModelNeeds = TARGET, draft: ModelNeeds = SHARING
) -> MemoryPlan:
    budget_bytes = int(budget_mib * MIB)
    return plan_models(budget_bytes, 20 * MIB, target, draft)


def copies_of(plan: MemoryPlan) -> int:
    return next(row.nbytes for row in plan.rows if row.what == COPIES)


def test_what_is_pinned_has_no_copy() -> None:
    plan = planned(150)
    assert plan.shared
    assert copies_of(plan) == sum(COPIED.values()) - COPY * len(plan.shared)


def test_the_bytes_of_copies_pin_more() -> None:
    saved = planned(150, draft=COPYING).bytes_per_pass - planned(150).bytes_per_pass
    assert saved >= 2 * LAYER


def test_what_has_a_copy_is_pinned_before_a_head_that_has_none() -> None:
    plan = planned(170)
    assert plan.pinned == plan.shared


def test_a_copy_is_needed_until_all_slices_of_its_matrix_are_pinned() -> None:
    plan = planned(150, SLICED)
    parts = [plan.segments[i].slice_of for i in plan.pinned]
    assert parts
    assert {parts.count(name) for name in parts} == {SLICES}
    assert copies_of(plan) == sum(COPIED.values()) - COPY * len({*parts})


def test_a_target_that_fits_has_all_copies_beside_it() -> None:
    plan = planned(400)
    assert not plan.paged
    assert copies_of(plan) == sum(COPIED.values())


def test_the_smallest_budget_has_room_for_all_copies() -> None:
    assert planned(150).smallest_bytes == planned(150, draft=COPYING).smallest_bytes


@settings(max_examples=40)
@given(st.integers(100, 400), st.booleans())
def test_a_plan_stays_within_its_budget(budget_mib: int, is_sliced: bool) -> None:
    plan = planned(budget_mib, SLICED if is_sliced else TARGET)
    assert plan.planned_bytes <= plan.budget_bytes
    assert copies_of(plan) >= 0


def test_what_a_larger_budget_pins_can_be_let_go_again() -> None:
    plan = planned(150)
    larger = adjusted(plan, 210 * MIB, TARGET.cuts)
    assert larger.pinned > plan.pinned
    assert larger.planned_bytes <= 210 * MIB
    assert adjusted(larger, 150 * MIB, TARGET.cuts).pinned == plan.pinned


def test_a_budget_below_what_a_draft_shares_is_refused_with_the_smallest() -> None:
    plan = planned(150)
    smallest = smallest_budget(plan, TARGET.cuts)
    shared_bytes = sum(plan.segments[i].slot_bytes for i in plan.shared)
    assert smallest > shared_bytes
    assert adjusted(plan, smallest, TARGET.cuts).planned_bytes <= smallest
    with pytest.raises(BudgetError) as refused:
        adjusted(plan, smallest - 1, TARGET.cuts)
    assert refused.value.smallest_bytes == smallest
