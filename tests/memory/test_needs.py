"""A target and its draft share a budget: one smallest budget, and batches that the rest affords."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BudgetError
from edgespec.memory.budget import LOADING, MIB, MemoryPlan, MemoryRow
from edgespec.memory.division import HEADROOM_SHARE, PROCESS_SPREAD_BYTES, plan_models
from edgespec.memory.needs import BatchNeeds, ModelNeeds, affordable
from edgespec.memory.pinning import SegmentSize
from edgespec.session.strategy import Speed, best_plan

PROCESS_BYTES = 80 * MIB
MARGIN_BYTES = math.ceil((1 + HEADROOM_SHARE) * PROCESS_SPREAD_BYTES)
"""Bytes by which the budget that is named is larger than the smallest one for a process alike."""
plan_pair = partial(plan_models, choose=partial(best_plan, speed=Speed()))


def model(owner: str, layers: int, batch_mib: tuple[int, ...] = (40, 10)) -> ModelNeeds:
    weights = MemoryRow(owner, "weights", layers * 10 * MIB)
    return ModelNeeds(
        fixed=(MemoryRow(owner, "KV cache", 5 * MIB),),
        batches=tuple(
            BatchNeeds(
                12 * n,
                (MemoryRow(owner, "compute buffers", n * MIB),),
                (MemoryRow(owner, "embedding rows", n * MIB // 10),),
            )
            for n in batch_mib
        ),
        resident=(weights, MemoryRow(owner, LOADING, 3 * MIB)),
        paged=(MemoryRow(owner, "norms", MIB),),
        cuts=(tuple(SegmentSize(f"layer {i}", 10 * MIB, 10 * MIB) for i in range(layers)),),
    )


TARGET, DRAFT = model("target", 50), model("draft", 2)
SMALL_BATCHES = model("target", 50, (5, 1))


def planned(budget_bytes: int, process_bytes: int = PROCESS_BYTES) -> MemoryPlan:
    return plan_pair(budget_bytes, process_bytes, TARGET, DRAFT)


def smallest_named(budget_bytes: int) -> int:
    try:
        return planned(budget_bytes).smallest_bytes
    except BudgetError as refusal:
        return refusal.smallest_bytes or 0


@given(budget_mib=st.integers(1, 2000))
def test_one_smallest_budget_is_named_whatever_the_budget(budget_mib: int) -> None:
    assert smallest_named(budget_mib * MIB) == smallest_named(MIB) > 0


def test_the_budget_that_is_named_works_for_a_larger_process_too() -> None:
    named = smallest_named(MIB)
    assert planned(named, PROCESS_BYTES + PROCESS_SPREAD_BYTES).planned_bytes <= named


@given(budget_mib=st.integers(1, 2000) | st.integers(140, 170))
def test_every_budget_from_the_smallest_on_works_and_none_below(budget_mib: int) -> None:
    """A larger budget was refused where a smaller one worked: its batches were larger."""
    plan = partial(plan_pair, process_bytes=PROCESS_BYTES, target=SMALL_BATCHES, draft=DRAFT)
    smallest = plan(1 << 40).smallest_bytes - MARGIN_BYTES
    if budget_mib * MIB < smallest:
        with pytest.raises(BudgetError):
            plan(budget_mib * MIB)
    else:
        assert plan(budget_mib * MIB).planned_bytes <= budget_mib * MIB


def test_trees_have_the_smallest_batches_where_affordable_ones_do_not_fit() -> None:
    trees = (replace(batch, max_nodes=33) for batch in SMALL_BATCHES.batches)
    target = replace(SMALL_BATCHES, batches=(*trees, *SMALL_BATCHES.batches))
    largest = partial(max, key=attrgetter("max_nodes"))
    plan = partial(plan_models, process_bytes=PROCESS_BYTES, target=target, choose=largest)
    smallest = plan(1 << 40).smallest_bytes - MARGIN_BYTES
    assert plan(smallest + 2 * MIB).max_nodes == 33


def test_a_larger_budget_has_larger_batches() -> None:
    assert [planned(n * MIB).batch_size for n in (200, 2000)] == [120, 480]
    assert planned(2000 * MIB).batches == {"target": 0, "draft": 0}


def test_batches_of_the_last_resort_are_for_budgets_that_afford_no_others() -> None:
    """A prompt takes more passes in smaller batches."""
    small = replace(TARGET.batches[-1], batch_size=24, rows=(), is_last_resort=True)
    target = replace(TARGET, batches=(*TARGET.batches, small))
    plan = partial(plan_pair, process_bytes=PROCESS_BYTES, target=target)
    smallest = plan(1 << 40).smallest_bytes
    usual = plan_pair(1 << 40, PROCESS_BYTES, TARGET).smallest_bytes - MARGIN_BYTES
    assert smallest < usual
    assert [plan(size).batch_size for size in (smallest, usual - 2, usual + 2)] == [24, 24, 120]


def test_the_largest_batches_within_the_share_of_the_budget_are_taken() -> None:
    assert [affordable([40, 10, 5], budget) for budget in (10, 100, 200, 799, 800)] == [
        2, 2, 1, 1, 0,
    ]  # fmt: skip


def test_buffers_that_weights_have_between_prompts_allow_larger_batches() -> None:
    lent = tuple(
        replace(batch, rows=tuple(replace(row, is_lent=True) for row in batch.rows))
        for batch in TARGET.batches
    )
    targets = TARGET, replace(TARGET, batches=lent)
    plans = [plan_pair(400 * MIB, PROCESS_BYTES, target) for target in targets]
    assert [plan.batch_size for plan in plans] == [120, 480]


def test_what_loading_the_draft_takes_is_free_again_when_the_target_comes() -> None:
    assert not [row for row in planned(300 * MIB).rows if row.what == LOADING]


def test_a_resident_pair_takes_the_most_that_its_phases_do() -> None:
    """Loading the draft, loading the target beside it, and running: each begins with what stays of
    the one before."""
    sizes = (0, 20, 70, 300)
    for draft_loading, target_loading, late in itertools.product(sizes, repeat=3):
        pair = {
            owner: ModelNeeds(
                fixed=(MemoryRow(owner, "KV cache", late * MIB, is_late=True),),
                batches=(BatchNeeds(8, ()),),
                resident=(
                    MemoryRow(owner, "weights", weights * MIB),
                    MemoryRow(owner, LOADING, loading * MIB),
                ),
            )
            for owner, weights, loading in (
                ("target", 100, target_loading),
                ("draft", 40, draft_loading),
            )
        }
        plan = plan_pair(1 << 40, PROCESS_BYTES, pair["target"], pair["draft"])
        process = sum(row.nbytes for row in plan.rows if row.owner == "process")
        phases = (40 + draft_loading, 140 + target_loading, 140 + 2 * late)
        assert plan.planned_bytes == process + max(phases) * MIB
        smallest = plan_pair(plan.smallest_bytes, PROCESS_BYTES, pair["target"], pair["draft"])
        assert smallest.planned_bytes == plan.planned_bytes


def test_a_draft_is_planned_to_stay_in_memory() -> None:
    rows = {row.what: row.nbytes for row in planned(300 * MIB).rows if row.owner == "draft"}
    assert rows == {"KV cache": 5 * MIB, "compute buffers": 10 * MIB, "weights": 20 * MIB}


def test_what_both_models_share_is_there_once() -> None:
    library = MemoryRow("process", "GPU library", 30 * MIB)
    alone, both = (
        plan_pair(
            300 * MIB,
            PROCESS_BYTES,
            replace(TARGET, shared=(library,)),
            replace(DRAFT, shared=shared),
        )
        for shared in ((), (library,))
    )
    assert [row for row in both.rows if row.what == library.what] == [library]
    assert alone == both


def test_what_models_share_is_in_the_smallest_budget() -> None:
    library = MemoryRow("process", "GPU library", 30 * MIB)
    target = replace(TARGET, shared=(library,))
    smallest = plan_pair(300 * MIB, PROCESS_BYTES, target, DRAFT).smallest_bytes
    least = plan_pair(300 * MIB, PROCESS_BYTES, TARGET, DRAFT).smallest_bytes
    assert smallest - least >= library.nbytes
    with pytest.raises(BudgetError) as refused:
        plan_pair(least, PROCESS_BYTES, target, DRAFT)
    assert refused.value.smallest_bytes == smallest
