"""The round planner predicts plans: what they read, and the best round under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.engine.prices import Prices
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.session.strategy import Speed, best_tree, prices_of, rate_of_trees
from edgespec.theory import tree_tokens

DISK = 100.0 * MIB
LAYERS = tuple(SegmentSize(f"layer {n}", 100 * MIB, 100 * MIB) for n in range(4))
DENSE = MemoryPlan(400 * MIB, (), LAYERS, frozenset({0}), MIB, True, MIB, max_nodes=49)


def mixture(n_experts: int) -> MemoryPlan:
    """Experts alone are read: all else is pinned."""
    sizes = ExpertSizes(4, n_experts, 2, 800 * MIB, 800 * MIB, 200 * MIB, 20 * MIB)
    pinned = frozenset(range(len(LAYERS)))
    return replace(DENSE, pinned=pinned, experts=sizes, expert_bytes=100 * MIB)


@pytest.mark.parametrize("plan", [DENSE, mixture(16), replace(DENSE, paged=False)])
@pytest.mark.parametrize("n_rows", [1, 6, 49])
def test_a_pass_reads_what_the_plan_expects(plan: MemoryPlan, n_rows: int) -> None:
    pass_s = float(prices_of(plan, DISK).pass_s(n_rows))
    assert pass_s == pytest.approx(plan.expected_bytes(n_rows) / DISK)


def test_where_only_reads_take_time_the_largest_tree_is_best() -> None:
    best = best_tree(DENSE, DISK)
    assert (best.n_rows, best.seconds) == (49, 3.0)
    assert best.tokens == pytest.approx(5.0)


def test_where_every_row_reads_experts_of_its_own_guesses_do_not_pay() -> None:
    assert best_tree(mixture(256), DISK).n_rows == 1
    assert best_tree(mixture(4), DISK).n_rows > 1


def test_rows_that_cost_as_much_as_a_pass_are_not_guessed() -> None:
    def best(seconds: float) -> int:
        prices = Prices()
        prices.put(1, 0.1)
        prices.put(48, seconds)
        return prices.best(tree_tokens(np.arange(49.0))).n_rows

    assert best(4.8) == 1
    assert 1 < best(0.5) < 49


def test_rounds_that_were_measured_are_priced_as_they_were() -> None:
    prices = prices_of(DENSE, DISK, compute_s=4.0)
    assert prices.best(np.array([3.0])) == (1, 3.0, 4.0)


def rate(
    plan: MemoryPlan, n_texts: int = 1, disk: float = USUAL_BYTES_PER_S, n_threads: int = 2
) -> float:
    return rate_of_trees(plan, n_texts, Speed(disk, n_threads))


def test_a_plan_is_worth_more_for_fewer_reads_and_for_larger_trees_that_reads_hide() -> None:
    larger = replace(DENSE, max_nodes=97)
    assert rate(larger, n_threads=16) > rate(DENSE, n_threads=16)
    assert rate(larger) == rate(DENSE)
    assert rate(replace(DENSE, pinned=frozenset({0, 1}))) > rate(DENSE)


def test_a_plan_for_several_texts_is_worth_more_with_more_nodes() -> None:
    """Each of eight texts has an eighth of the nodes, and a use for more."""

    def gained(n_texts: int) -> float:
        few, many = (replace(DENSE, max_nodes=n) for n in (97, 193))
        machine = n_texts, USUAL_BYTES_PER_S / 2, 16
        return rate(many, *machine) / rate(few, *machine)

    assert gained(1) < 1.05
    assert gained(8) > 1.1
