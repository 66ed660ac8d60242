"""Weights have the memory of a context's cells until these are filled."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edgespec.memory.budget import MemoryPlan, MemoryRow, divided, plan_memory
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec_runtimes.kit.segmented import ContextSize

MIB = 1 << 20
CONTEXT = ContextSize(n_cells=4096, cell_bytes=16 << 10, rest_bytes=1 * MIB)
SEGMENTS = tuple(SegmentSize(str(i), 5 * MIB, 5 * MIB) for i in range(40))


def loaded(budget_bytes: int, experts: ExpertSizes | None = None) -> MemoryPlan:
    fixed = [MemoryRow("target", "KV cache", 64 * MIB)]
    return plan_memory(budget_bytes, fixed, [SEGMENTS], experts=experts)


@pytest.mark.parametrize("budget_mib", [90, 130, 200, 240])
def test_every_step_keeps_the_budget_and_reads_nothing_again(budget_mib: int) -> None:
    plan = loaded(budget_mib * MIB)
    cells = range(0, 4097, 128)
    found = [divided(plan, plan.budget_bytes + CONTEXT.unused_bytes(n)) for n in cells]
    for n, step in zip(cells, found, strict=True):
        filled = CONTEXT.rest_bytes + n * CONTEXT.cell_bytes if n < 4000 else 64 * MIB
        assert step.planned_bytes - 64 * MIB + filled <= plan.budget_bytes
    for less, more in pairwise(found):
        assert less.pinned >= more.pinned
    assert found[-1] == plan
    assert len(found[0].pinned) >= min(len(SEGMENTS), len(plan.pinned) + 11)  # 59 of 64 MiB


def test_the_cache_of_experts_has_the_memory_of_a_mixture() -> None:
    """More cache saves a share of the experts that a token chooses, not all that it can hold."""
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
    first = divided(plan, plan.budget_bytes + CONTEXT.unused_bytes(0))
    assert first.pinned == plan.pinned
    assert first.expert_bytes - plan.expert_bytes == 59 * MIB
    rows = [replace(row, is_lent=row.what == "KV cache") for row in plan.rows]
    lent = divided(plan, plan.budget_bytes + plan.rows[0].nbytes)
    assert replace(plan, rows=tuple(rows)).least_bytes_per_pass == lent.expected_bytes(1) > 0


@pytest.mark.parametrize("context", [ContextSize(), ContextSize(256, 16 << 10)])
def test_a_context_that_is_small_or_taken_at_once_lends_nothing(context: ContextSize) -> None:
    assert not context.unused_bytes(0)


def test_memory_that_is_lent_pins_what_is_read_whole_before_nested_weights() -> None:
    """A pass of a short text read 547 MiB in place of the 489 that its plan promised."""
    sizes = {"copy_bytes": 5 * MIB, "lower_bytes": 5 * MIB}
    nested = [SegmentSize(f"{n}", 10 * MIB, 10 * MIB, **sizes) for n in range(8)]
    head = [SegmentSize(f"head {n}", 10 * MIB, 10 * MIB, lower_bytes=10 * MIB) for n in range(4)]
    rows = [MemoryRow("target", "KV cache", 40 * MIB, is_lent=True)]
    plan = plan_memory(70 * MIB, rows, [[*nested, *head]])
    lent = divided(plan, plan.budget_bytes + plan.lent_bytes)
    assert lent.streamed_read_bytes == plan.least_bytes_per_pass == 40 * MIB
