"""The plan chooses how large trees may be: more where the buffers cost little, fewer where much."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import theory
from edgespec.errors import BudgetError
from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.division import plan_models
from edgespec.memory.needs import TREE_SIZES, BatchNeeds, ModelNeeds
from edgespec.memory.pinning import SegmentSize
from edgespec.session.strategy import Speed, best_plan

PROCESS_BYTES = 80 * MIB
USUAL = 49


def target(n_vocab: int, nodes: tuple[int, ...] = TREE_SIZES, mib: int = 1000) -> ModelNeeds:
    """A model whose rows of logits are those of a vocabulary."""
    return ModelNeeds(
        fixed=(MemoryRow("target", "KV cache", 5 * MIB),),
        batches=tuple(
            BatchNeeds(
                batch,
                (
                    MemoryRow("target", "compute buffers", batch * MIB // 16),
                    MemoryRow("target", "logits", 8 * n_vocab * n_nodes),
                ),
                max_nodes=n_nodes,
            )
            for n_nodes in nodes
            for batch in (512, 128)
        ),
        resident=(MemoryRow("target", "weights", mib * MIB),),
        cuts=(tuple(SegmentSize(f"{i}", MIB, MIB) for i in range(mib)),),
    )


def planned(budget_mib: float, needs: ModelNeeds) -> MemoryPlan:
    return plan_models(
        int(budget_mib * MIB), PROCESS_BYTES, needs, choose=partial(best_plan, speed=Speed())
    )


def smallest(needs: ModelNeeds) -> int:
    return planned(1 << 20, needs).smallest_bytes


def test_a_small_vocabulary_affords_the_largest_trees() -> None:
    assert planned(500, target(4096)).max_nodes == TREE_SIZES[0]


def test_a_large_vocabulary_affords_them_where_weights_are_many() -> None:
    few, many = planned(500, target(150_000)), planned(4000, target(150_000, mib=8000))
    assert few.max_nodes < many.max_nodes == TREE_SIZES[0]


def test_rows_that_no_read_hides_get_no_memory() -> None:
    """Two cores compute some 40 rows while a pass of half of the weights is read."""
    needs = target(150_000)
    few, many = (
        plan_models(
            500 * MIB, PROCESS_BYTES, needs, choose=partial(best_plan, speed=Speed(n_threads=n))
        )
        for n in (2, 16)
    )
    assert few.max_nodes <= USUAL < many.max_nodes


def test_a_resident_target_has_the_usual_buffers() -> None:
    plan = planned(4000, target(4096))
    assert (plan.paged, plan.max_nodes) == (False, USUAL)


def test_no_target_is_paged_for_larger_trees() -> None:
    resident_bytes = planned(4000, target(150_000, (USUAL,))).planned_bytes
    plan = planned(resident_bytes / MIB, target(150_000))
    assert (plan.paged, plan.max_nodes) == (False, USUAL)


def test_the_smallest_budget_is_that_of_the_smallest_trees() -> None:
    least = TREE_SIZES[-1]
    assert smallest(target(150_000)) == smallest(target(150_000, (least,)))
    assert smallest(target(150_000)) < smallest(target(150_000, (USUAL,)))
    assert planned(smallest(target(150_000)) / MIB, target(150_000)).max_nodes == least


@pytest.mark.slow
@settings(max_examples=30)
@given(budget_mib=st.integers(100, 1200), n_vocab=st.sampled_from([4096, 32_000, 150_000]))
def test_a_pass_reads_little_more_than_with_the_usual_trees(budget_mib: int, n_vocab: int) -> None:
    try:
        usual = planned(budget_mib, target(n_vocab, (USUAL,)))
    except BudgetError:
        return
    chosen = planned(budget_mib, target(n_vocab))
    most = theory.tree_tokens(96.0) / theory.tree_tokens(48.0)
    assert chosen.bytes_per_pass <= most * usual.bytes_per_pass
    assert chosen.planned_bytes <= budget_mib * MIB


@pytest.mark.parametrize("n_nodes", [3, 129])
def test_a_number_that_was_asked_for_stays(n_nodes: int) -> None:
    assert planned(500, target(4096, (n_nodes,))).max_nodes == n_nodes
