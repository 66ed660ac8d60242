"""The number of texts at once that `auto` stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.session.strategy import texts_at_once


def plan(n_parallel: int, streamed_bytes: int) -> MemoryPlan:
    return MemoryPlan(
        budget_bytes=1,
        rows=(),
        segments=(SegmentSize("layer", streamed_bytes, streamed_bytes),),
        pinned=frozenset(),
        ring_bytes=0,
        paged=streamed_bytes > 0,
        smallest_bytes=1,
        n_parallel=n_parallel,
    )


MIB = 1 << 20


def chosen(plans: Sequence[MemoryPlan], keeps_one_text_fast: bool = False) -> int:
    """The number of texts that is chosen of those for 1, 2, 4 ... texts."""
    by_number = {plan.n_parallel: replace(plan, text_bytes=plan.text_bytes or 1) for plan in plans}
    plan = texts_at_once(by_number.get, keeps_one_text_fast)
    assert plan is not None
    return plan.n_parallel


def test_the_most_texts_for_the_bytes_of_a_pass_are_chosen() -> None:
    assert chosen([plan(1, 100 * MIB), plan(2, 110 * MIB), plan(4, 150 * MIB)]) == 4
    assert chosen([plan(1, 100 * MIB), plan(2, 110 * MIB), plan(4, 900 * MIB)]) == 2
    assert chosen([plan(1, 100 * MIB)]) == 1


def test_no_text_drives_weights_out_of_memory() -> None:
    assert chosen([plan(1, 0), plan(2, 0), plan(4, 10 * MIB)]) == 2


def test_places_may_cost_a_short_text_a_twentieth_of_its_reads() -> None:
    """Memory that weights have until texts fill it costs a short text nothing."""
    assert chosen([plan(1, 1000), plan(2, 1050)], True) == 2
    assert chosen([plan(1, 1000), plan(2, 1051)], True) == 1
    cells = (MemoryRow("target", "KV cache", 500, is_lent=True),)
    lent = replace(plan(8, 1500), rows=cells)
    assert chosen([plan(1, 1000), plan(2, 1000), plan(4, 1500), lent], True) == 8


def test_places_of_a_resident_model_may_cost_all_unused_memory_but_no_draft() -> None:
    weights = (MemoryRow("target", "weights", 40),)
    plans = [replace(plan(n, 0), rows=weights) for n in (1, 2, 4)]
    assert chosen([*plans, plan(8, 10)], True) == 4
    without = replace(plans[2], rows=(*weights, MemoryRow("draft", "weights", 1)))
    assert chosen([*plans[:2], without], True) == 2


@pytest.mark.parametrize("keeps_one_text_fast", [False, True])
def test_no_number_of_texts_is_chosen_that_would_alter_a_prompt(keeps_one_text_fast: bool) -> None:
    plans = [replace(plan(n, 0), texts_alter_prompts=True) for n in (1, 2)]
    assert chosen(plans, keeps_one_text_fast) == 1
