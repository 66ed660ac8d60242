"""The choice of a draft made from the target, on plans without models."""

from __future__ import annotations

from dataclasses import replace

from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.session.strategy import (
    COARSENESSES,
    Guessing,
    Speed,
    Strategy,
    beside,
    fastest,
    own_draft,
    own_drafts,
)
from edgespec.values import DraftSizes

SLOW = 300e6
SPEED = Speed(SLOW)


def plan(budget_mib: int, weights_mib: int = 1800, smallest_mib: int = 150) -> MemoryPlan:
    """A plan of a target alone that pins what the budget leaves."""
    n_pinned = max(0, min(weights_mib, budget_mib - smallest_mib)) // 10
    segments = tuple(SegmentSize(f"{n}", 10 * MIB, 10 * MIB) for n in range(weights_mib // 10))
    rows = (MemoryRow("target", "KV cache (4096 tokens)", 28 * MIB),)
    pinned = frozenset(range(n_pinned))
    is_paged = n_pinned < len(segments)
    return MemoryPlan(
        budget_mib * MIB,
        rows,
        segments,
        pinned,
        0,
        is_paged,
        smallest_mib * MIB,
        ctx_size=4096,
        max_nodes=17,
    )


SIZES = [DraftSizes(one.kind, one.bits, int(1.3e9 * one.bits / 8)) for one in COARSENESSES]
"""Sizes of drafts of a model with 1,300 million weights."""


def found(its_plan: MemoryPlan) -> list[Strategy]:
    return own_drafts(its_plan, 1800 * MIB, SIZES)


def best(candidates: list[Strategy]) -> Strategy:
    chosen = fastest(candidates, SPEED)
    assert chosen is not None
    return chosen


def test_the_finest_that_leaves_room_is_chosen_where_memory_is_plentiful() -> None:
    few, many = (best(found(plan(mib))).file_bytes for mib in (900, 1400))
    assert few <= many


def test_what_does_not_fit_is_no_candidate() -> None:
    assert found(plan(600)) == []
    fitting = found(plan(700))
    assert [one.draft for one in fitting] == ["Q2_K"]


def test_a_slow_disk_gains_more_than_a_fast_one() -> None:
    without = Strategy(plan(900), 1800 * MIB)

    def gain(disk: float) -> float:
        made = own_draft(plan(900), SIZES, disk)
        assert made is not None
        return made.rates(Speed(disk))[0] / without.rates(Speed(disk))[0]

    assert gain(SLOW) > gain(1e9)


def test_upper_bits_draft_where_merging_takes_no_longer_than_reading() -> None:
    """Sizes of the drafts of Qwen2.5-Coder-1.5B in Q8_0, at half of its own size."""
    copy = DraftSizes("Q3_K", 3.44, 607_000_000)
    nested = DraftSizes("nested_small", 3.57, 606_000_000, 32768, 918_000_000, 475_000_000)
    half = plan(903, weights_mib=1564)
    chosen = [own_draft(half, [copy, nested], disk) for disk in (SLOW, 1.4e9)]
    assert [one.draft for one in chosen if one] == ["nested_small", "Q3_K"]


def test_a_target_that_fits_gets_none() -> None:
    assert found(plan(4000)) == []
    assert own_draft(plan(4000), SIZES, SLOW) is None


def test_a_target_of_which_none_can_be_made_gets_none() -> None:
    assert own_draft(plan(900), [], SLOW) is None


def test_the_bytes_of_copies_that_pinned_weights_replace_pin_more() -> None:
    apart = beside(plan(1400), 1800 * MIB, "draft", 450 * MIB)
    shared = replace(apart, saved_share=0.25)
    assert shared.rates(SPEED) > apart.rates(SPEED)


def test_the_fastest_candidate_is_chosen() -> None:
    """Passes that read 1600, 1500 and 1300 MiB for one token each."""
    some = [Strategy(plan(mib), 1800 * MIB) for mib in (350, 450, 650)]
    assert fastest(some, SPEED) is some[2]
    assert fastest([], SPEED) is None


def test_a_draft_whose_steps_take_longer_than_it_saves_is_slower_than_none() -> None:
    without = Strategy(plan(900), 1800 * MIB)
    drafted = beside(plan(900), 1800 * MIB, "draft", 400 * MIB)
    poor = replace(drafted, guessing=Guessing((1.1, 1.2), 10, 3.0))
    assert best([poor, without]) is without
