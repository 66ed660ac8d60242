"""Weights have the memory of a context's cells until these are filled."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgespec.memory.budget import MemoryPlan, MemoryRow, plan_memory
from edgespec.memory.changed_budget import shares_of, while_unfilled
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.ports.adjusting import ContextSize

MIB = 1 << 20
CONTEXT = ContextSize(n_cells=4096, cell_bytes=16 << 10, rest_bytes=1 * MIB)
SEGMENTS = tuple(SegmentSize(str(i), 5 * MIB, 5 * MIB) for i in range(40))


def loaded(budget_bytes: int, experts: ExpertSizes | None = None) -> MemoryPlan:
    fixed = [MemoryRow("target", "KV cache", 64 * MIB)]
    return plan_memory(budget_bytes, fixed, [SEGMENTS], experts=experts)


@pytest.mark.parametrize("budget_mib", [90, 130, 200, 240])
def test_every_step_keeps_the_budget_and_reads_nothing_again(budget_mib: int) -> None:
    plan = loaded(budget_mib * MIB)
    steps = while_unfilled(plan, CONTEXT)
    assert len(steps) == 15
    assert [step.n_cells for step in steps] == list(range(256, 4096, 256))
    for step in steps:
        pinned = sum(SEGMENTS[i].slot_bytes for i in step.shares.pinned)
        filled = CONTEXT.rest_bytes + step.n_cells * CONTEXT.cell_bytes
        assert pinned + step.shares.ring_bytes + filled <= plan.planned_bytes
        assert (step.shares.ring_bytes == 0) == (len(step.shares.pinned) == len(SEGMENTS))
    shares = [*(step.shares for step in steps), shares_of(plan)]
    for less, more in pairwise(shares):
        assert less.pinned >= more.pinned
    assert len(shares[0].pinned) >= min(len(SEGMENTS), len(plan.pinned) + 11)  # 59 of 64 MiB


def test_the_cache_of_experts_has_the_memory_of_a_mixture() -> None:
    experts = ExpertSizes(
        n_layers=4,
        n_experts=64,
        n_used=4,
        nbytes=256 * MIB,
        room_bytes=256 * MIB,
        layer_bytes=64 * MIB,
        least_bytes=4 * MIB,
    )
    plan = loaded(330 * MIB, experts)
    first, *_ = while_unfilled(plan, CONTEXT)
    assert first.shares.pinned == plan.pinned
    assert first.shares.expert_bytes - plan.expert_bytes == 59 * MIB


@pytest.mark.parametrize("context", [ContextSize(), ContextSize(256, 16 << 10)])
def test_a_context_that_is_small_or_taken_at_once_has_no_steps(context: ContextSize) -> None:
    assert not while_unfilled(loaded(130 * MIB), context)
