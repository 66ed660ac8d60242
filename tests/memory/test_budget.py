"""The memory plan: rows add up, pinning is even, refusals name the smallest budget."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BudgetError
from edgespec.memory.budget import LOADING, MemoryRow, beside_later, plan_memory
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize

FIXED = (MemoryRow("process", "all", 100), MemoryRow("draft", "weights", 50))


def layers(n: int, nbytes: int = 10) -> list[SegmentSize]:
    return [SegmentSize(f"layer {i}", nbytes, nbytes) for i in range(n)]


def test_what_fits_whole_is_resident_and_has_no_pager() -> None:
    plan = plan_memory(400, FIXED, [layers(20)], [MemoryRow("target", "weights", 200)])
    assert not plan.paged
    assert plan.bytes_per_pass == 0
    assert plan.planned_bytes == 350


def test_what_does_not_fit_is_paged_and_the_rest_of_the_budget_pins() -> None:
    plan = plan_memory(300, FIXED, [layers(20)], [MemoryRow("target", "weights", 200)])
    assert plan.paged
    assert plan.ring_bytes == 30
    assert plan.pinned_bytes == 120
    assert plan.streamed_bytes == 80


def test_pinned_segments_are_spread_evenly_over_the_depth() -> None:
    plan = plan_memory(150 + 30 + 100, FIXED, [layers(40)])
    gaps = {b - a for a, b in itertools.pairwise(sorted(plan.pinned))}
    assert len(plan.pinned) == 10
    assert gaps == {4}


def test_a_far_larger_head_is_pinned_so_that_the_ring_stays_small() -> None:
    segments = [*layers(20), SegmentSize("output", 60, 60)]
    plan = plan_memory(150 + 30 + 60 + 20, FIXED, [segments])
    assert 20 in plan.pinned
    assert plan.ring_bytes == 30


def test_a_tight_budget_takes_the_finer_cut() -> None:
    coarse, fine = layers(40, 30), layers(60, 20)
    assert len(plan_memory(150 + 890, FIXED, [coarse, fine]).segments) == 60
    assert len(plan_memory(150 + 910, FIXED, [coarse, fine]).segments) == 40


def slices(n: int, nbytes: int, n_matrices: int) -> list[SegmentSize]:
    return [SegmentSize(f"{i}", nbytes, nbytes, f"matrix {i % n_matrices}") for i in range(n)]


@pytest.mark.parametrize(("n_matrices", "room", "n_segments"), [
    (60, 310, 60), (60, 290, 120), (1, 310, 120),
], ids=["whole", "too large a ring", "only the head is sliced"])  # fmt: skip
def test_a_larger_ring_is_taken_so_that_matrices_of_layers_stay_whole(
    n_matrices: int, room: int, n_segments: int
) -> None:
    """Every slice stops the computation."""
    cuts = [layers(60, 20), slices(120, 10, n_matrices)]
    assert len(plan_memory(150 + room, FIXED, cuts).segments) == n_segments


def test_two_slots_do_where_three_leave_no_room() -> None:
    assert plan_memory(150 + 20, FIXED, [layers(20)]).ring_bytes == 20


def test_a_budget_below_the_minimum_is_refused_with_the_smallest_that_works() -> None:
    with pytest.raises(BudgetError) as refusal:
        plan_memory(160, FIXED, [layers(20)])
    smallest = refusal.value.smallest_bytes
    assert smallest == 170
    assert plan_memory(smallest, FIXED, [layers(20)]).planned_bytes <= smallest


def test_what_cannot_be_paged_is_refused_with_what_its_weights_take() -> None:
    weights = MemoryRow("target", "weights", 1 << 30)
    with pytest.raises(BudgetError) as refusal:
        plan_memory(160, FIXED, [], [weights])
    assert "ring" not in str(refusal.value)
    assert refusal.value.smallest_bytes == 150 + weights.nbytes
    assert " 1025 MiB " in str(refusal.value)


def test_what_only_loading_takes_counts_as_far_as_nothing_later_takes_as_much() -> None:
    weights, loading = MemoryRow("draft", "weights", 50), MemoryRow("draft", LOADING, 30)
    assert beside_later([weights, loading], 10) == [weights, MemoryRow("draft", LOADING, 20)]
    assert beside_later([weights, loading], 30) == [weights]


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    room=st.integers(0, 40_000),
    paged_bytes=st.integers(0, 500),
)
def test_a_plan_never_exceeds_its_budget_and_is_refused_only_below_the_smallest(
    sizes: list[int], room: int, paged_bytes: int
) -> None:
    segments = [SegmentSize(str(i), n, n) for i, n in enumerate(sizes)]
    paged = (MemoryRow("target", "small", paged_bytes),)
    budget = 150 + room
    smallest = 150 + paged_bytes + sum(sorted(sizes)[-2:])
    if budget < smallest:
        with pytest.raises(BudgetError) as refusal:
            plan_memory(budget, FIXED, [segments], None, paged)
        assert refusal.value.smallest_bytes == smallest
        return
    plan = plan_memory(budget, FIXED, [segments], None, paged)
    assert plan.planned_bytes <= budget
    assert plan.planned_bytes == sum(row.nbytes for row in plan.rows)
    assert plan.pinned_bytes + plan.streamed_bytes == sum(sizes)
    streamed = [n for i, n in enumerate(sizes) if i not in plan.pinned]
    assert not streamed or plan.ring_bytes >= max(streamed)


@given(st.lists(st.integers(50, 60), min_size=30, max_size=80), st.floats(0.2, 0.9))
def test_pinning_uses_the_room_and_keeps_the_gaps_alike(sizes: list[int], share: float) -> None:
    segments = [SegmentSize(str(i), n, n) for i, n in enumerate(sizes)]
    ring = sum(sorted(sizes)[-3:])
    plan = plan_memory(150 + ring + int(share * sum(sizes)), FIXED, [segments])
    left = plan.budget_bytes - plan.planned_bytes
    assert left <= 2 * max(sizes)
    is_streamed = [i not in plan.pinned for i in range(len(sizes))]
    runs = [len(list(group)) for streamed, group in itertools.groupby(is_streamed) if streamed]
    assert not runs or max(runs) <= 2 / share + 1


# A mixture: 10 layers of 8 experts, 2 used, an expert takes 20.

EXPERTS = ExpertSizes(
    n_layers=10,
    n_experts=8,
    n_used=2,
    nbytes=1600,
    room_bytes=1600,
    layer_bytes=160,
    least_bytes=40,
)


def test_dense_weights_are_pinned_first_and_experts_get_the_rest() -> None:
    plan = plan_memory(150 + 200 + 400, FIXED, [layers(20)], experts=EXPERTS)
    assert (len(plan.pinned), plan.ring_bytes, plan.expert_bytes) == (20, 0, 400)
    assert plan.planned_bytes == 750


def test_a_mixture_works_with_a_ring_and_what_one_token_chooses_in_a_layer() -> None:
    assert plan_memory(150 + 20 + 40, FIXED, [layers(20)], experts=EXPERTS).expert_bytes == 40
    with pytest.raises(BudgetError) as refused:
        plan_memory(150 + 20 + 39, FIXED, [layers(20)], experts=EXPERTS)
    assert refused.value.smallest_bytes == 150 + 20 + 40


@given(room=st.integers(60, 2500))
def test_whatever_the_room_a_mixtures_plan_keeps_to_it(room: int) -> None:
    plan = plan_memory(150 + room, FIXED, [layers(20)], experts=EXPERTS)
    assert plan.planned_bytes <= 150 + room
    assert plan.expert_bytes >= EXPERTS.least_bytes
    assert not plan.pinned or plan.ring_bytes or len(plan.pinned) == 20


def test_a_cut_that_takes_a_little_more_room_does_not_make_dense_weights_stream() -> None:
    """A finer cut wastes more on whole blocks; the experts leave room for the coarse one."""
    fine = [SegmentSize(f"part {i}", 10, 11) for i in range(20)]
    plan = plan_memory(150 + 200 + 400, FIXED, [layers(2, 100), fine], experts=EXPERTS)
    assert plan.streamed_bytes == plan.ring_bytes == 0
    assert plan.expert_bytes == 400


def test_a_batch_of_a_prompt_finds_room_for_a_layers_experts_before_dense_weights_are_pinned() -> (
    None
):
    plan = plan_memory(150 + 330, FIXED, [layers(20)], experts=EXPERTS)
    assert plan.expert_bytes >= EXPERTS.layer_bytes
    assert 0 < len(plan.pinned) < 20


def test_a_pass_over_more_nodes_reads_more_experts_but_not_as_many_times_more() -> None:
    plan = plan_memory(150 + 200 + 400, FIXED, [layers(20)], experts=EXPERTS)
    one, eight = plan.expected_bytes(1), plan.expected_bytes(8)
    assert one == plan.bytes_per_pass == 241  # 10 layers, 2 experts of 20, 40 % of them there
    assert one < eight < 4 * one


def test_a_mixture_that_fits_reads_nothing() -> None:
    plan = plan_memory(150 + 200 + 1600, FIXED, [layers(20)], experts=EXPERTS)
    assert plan.expert_bytes == EXPERTS.room_bytes
    assert plan.bytes_per_pass == 0
