"""Another budget for models that are loaded: what stays, what goes, and in which steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BudgetError
from edgespec.memory.budget import COPIES, MemoryPlan, MemoryRow, plan_memory
from edgespec.memory.division import adjusted, smallest_budget
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import MIN_RING_SLOTS, SegmentSize, divide, pinning_order, spread

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
    smallest = smallest_budget(plan, CUTS)
    assert smallest == 80 * MIB + MIN_RING_SLOTS * 5 * MIB
    assert adjusted(plan, smallest, CUTS).planned_bytes <= smallest
    with pytest.raises(BudgetError) as refused:
        adjusted(plan, smallest - 1, CUTS)
    assert refused.value.smallest_bytes == smallest


def test_weights_that_cannot_be_let_go_keep_their_memory() -> None:
    resident = plan_memory(400 * MIB, FIXED, CUTS, [MemoryRow("target", "weights", 200 * MIB)])
    assert adjusted(resident, 300 * MIB, CUTS).budget_bytes == 300 * MIB
    with pytest.raises(BudgetError):
        adjusted(resident, 270 * MIB, CUTS)


def test_experts_give_memory_back_as_segments_do() -> None:
    sizes = ExpertSizes(4, 16, 2, 400 * MIB, 400 * MIB, 100 * MIB, 13 * MIB)
    plan = loaded(600 * MIB, sizes)
    found = adjusted(plan, 200 * MIB, CUTS)
    assert found.planned_bytes <= 200 * MIB
    assert sizes.least_bytes <= found.expert_bytes < plan.expert_bytes


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(SIZES, st.integers(0, 2000), st.integers(0, 500))
def test_more_room_never_unpins_a_segment(sizes: list[int], room: int, more: int) -> None:
    segments = [SegmentSize(str(i), n, n) for i, n in enumerate(sizes)]
    order = pinning_order(segments)
    less, ring_bytes = divide(segments, order, room)
    assert less <= divide(segments, order, room + more)[0]
    pinned = [i for unit in order[:less] for i in unit]
    assert ring_bytes + sum(sizes[i] for i in pinned) <= room


@pytest.mark.parametrize("n", [1, 2, 3, 24, 47, 64, 100])
def test_every_beginning_of_the_order_is_spread(n: int) -> None:
    order = spread(n)
    assert sorted(order) == list(range(n))
    for k in range(1, n):
        ends = [-1, *sorted(order[:k]), n]
        assert max(b - a for a, b in pairwise(ends)) <= 2 * n / k + 1


@pytest.mark.parametrize("n_kept", [0, 3, 12])
@pytest.mark.parametrize("n_used", [1, 4])
def test_a_mixture_has_a_ring_beside_what_a_draft_shares(n_kept: int, n_used: int) -> None:
    """At its smallest budget the ring had been smaller than a slot, or less than nothing."""
    segments = [
        SegmentSize(
            f"s{i}", 10 * MIB, 10 * MIB, copy_bytes=9 * MIB * (i < n_kept), weights=(f"w{i}",)
        )
        for i in range(12)
    ]
    sizes = (12 * 16 * MIB, 12 * 16 * MIB, 16 * MIB, n_used * MIB)
    experts, rows = ExpertSizes(12, 16, n_used, *sizes), [MemoryRow("draft", COPIES, 108 * MIB)]
    plan = plan_memory(330 * MIB, rows, [segments], None, (), experts)
    smallest = smallest_budget(plan, [segments])
    for budget_bytes in range(smallest, smallest + 60 * MIB, 3 * MIB):
        found = adjusted(plan, budget_bytes, [segments])
        assert found.planned_bytes <= budget_bytes
        assert found.ring_bytes >= 10 * MIB * min(2, 12 - len(found.pinned))
        assert found.expert_bytes >= n_used * MIB
