"""Another budget for models that are loaded: what stays, what goes, and in which steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import BudgetError
from edgespec.memory.budget import MemoryPlan, MemoryRow, plan_memory
from edgespec.memory.changed_budget import adjusted, next_shares, shares_of, smallest_budget
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import MIN_RING_SLOTS, SegmentSize, ring_for
from edgespec.ports.adjusting import WeightShares

MIB = 1 << 20
FIXED = [MemoryRow("process", "interpreter", 50 * MIB), MemoryRow("target", "KV cache", 30 * MIB)]


def cut(n: int, nbytes: int) -> tuple[SegmentSize, ...]:
    return tuple(SegmentSize(str(i), nbytes, nbytes) for i in range(n))


CUTS = (cut(10, 20 * MIB), cut(40, 5 * MIB))


def loaded(budget_bytes: int, experts: ExpertSizes | None = None) -> MemoryPlan:
    return plan_memory(budget_bytes, FIXED, CUTS, experts=experts)


def test_less_memory_pins_less_and_leaves_the_context() -> None:
    plan = loaded(400 * MIB)
    found = adjusted(plan, 200 * MIB, CUTS)
    assert found.rows[:2] == plan.rows[:2]
    assert found.planned_bytes <= found.budget_bytes == 200 * MIB
    assert 0 < found.pinned_bytes < plan.pinned_bytes


@pytest.mark.parametrize("budget_mib", [100, 150, 250, 500])
def test_a_changed_budget_is_divided_as_a_fresh_start_divides_it(budget_mib: int) -> None:
    fresh = loaded(budget_mib * MIB)
    found = adjusted(loaded(400 * MIB), budget_mib * MIB, CUTS)
    assert replace(found, smallest_bytes=0) == replace(fresh, smallest_bytes=0)


def test_the_cut_stays_where_coarser_segments_would_do() -> None:
    """Otherwise all pinned weights would be read again."""
    plan = loaded(150 * MIB)
    assert plan.cut == 1
    assert adjusted(plan, 400 * MIB, CUTS).cut == 1


def test_a_budget_below_the_smallest_is_refused_with_it() -> None:
    plan = loaded(400 * MIB)
    smallest = smallest_budget(plan, CUTS, None)
    assert smallest == 80 * MIB + MIN_RING_SLOTS * 5 * MIB
    assert adjusted(plan, smallest, CUTS).planned_bytes <= smallest
    with pytest.raises(BudgetError, match="at least 90 MiB") as refused:
        adjusted(plan, smallest - 1, CUTS)
    assert refused.value.smallest_bytes == smallest


def test_weights_that_cannot_be_let_go_keep_their_memory() -> None:
    resident = plan_memory(400 * MIB, FIXED, CUTS, [MemoryRow("target", "weights", 200 * MIB)])
    assert adjusted(resident, 300 * MIB, CUTS).budget_bytes == 300 * MIB
    with pytest.raises(BudgetError, match="--adjustable-budget"):
        adjusted(resident, 270 * MIB, CUTS)


def test_experts_give_memory_back_as_segments_do() -> None:
    sizes = ExpertSizes(4, 16, 2, 400 * MIB, 400 * MIB, 100 * MIB, 13 * MIB)
    plan = loaded(600 * MIB, sizes)
    found = adjusted(plan, 200 * MIB, CUTS, sizes)
    assert found.planned_bytes <= 200 * MIB
    assert sizes.least_bytes <= found.expert_bytes < plan.expert_bytes


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@settings(max_examples=50)
@given(sizes=SIZES, data=st.data())
def test_every_step_fits_and_the_last_one_arrives(sizes: list[int], data: st.DataObject) -> None:
    every = st.sets(st.integers(0, len(sizes) - 1)).map(frozenset)
    pinned, held = data.draw(every), data.draw(every)
    streamed = [size for i, size in enumerate(sizes) if i not in pinned]
    wanted = WeightShares(0, pinned, ring_for(streamed, data.draw(st.integers(2, 3))))
    most = wanted.ring_bytes + sum(sizes[i] for i in pinned)
    for _ in range(len(sizes) + 1):
        found = next_shares(sizes, held, wanted)
        others = [size for i, size in enumerate(sizes) if i not in found.pinned]
        assert found.pinned <= pinned
        assert found.ring_bytes + sum(sizes[i] for i in found.pinned) <= most
        assert found.ring_bytes >= ring_for(others, MIN_RING_SLOTS)
        assert held & pinned <= found.pinned
        if found == wanted:
            return
        assert found.pinned > held & pinned
        held = found.pinned
    raise AssertionError("it never arrived")


def test_what_is_missing_comes_in_portions() -> None:
    wanted = WeightShares(0, frozenset(range(40)), 0)
    found = next_shares([5] * 40, frozenset(), wanted)
    assert len(found.pinned) == 5
    assert found.ring_bytes == 15


def test_a_plan_has_the_shares_that_it_names() -> None:
    plan = loaded(200 * MIB)
    assert shares_of(plan) == WeightShares(plan.cut, plan.pinned, plan.ring_bytes, 0)
