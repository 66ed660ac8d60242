"""The choice of a draft made from the target, on plans without models."""

from __future__ import annotations

from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.session.strategy import Guessing, Speed, Strategy, choose, hint, own_draft, own_drafts

SLOW = 300e6


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


def found(its_plan: MemoryPlan) -> list[Strategy]:
    return own_drafts(its_plan, 1800 * MIB, sizes, Speed(SLOW))


def disk() -> float:
    return SLOW


def sizes(bits: float) -> int:
    """Sizes of drafts of a model with 1,300 million weights."""
    return int(1.3e9 * bits / 8)


def test_the_finest_that_leaves_room_is_chosen_where_memory_is_plentiful() -> None:
    few, many = (found(plan(mib))[0].file_bytes for mib in (900, 1400))
    assert few <= many


def test_what_does_not_fit_is_no_candidate() -> None:
    assert found(plan(600)) == []
    fitting = found(plan(700))
    assert [one.draft for one in fitting] == ["Q2_K"]


def test_a_slow_disk_gains_more_than_a_fast_one() -> None:
    slow, fast = (own_draft(plan(900), sizes, disk) for disk in (SLOW, 1e9))
    assert slow is not None
    assert fast is not None
    assert slow[1] > fast[1]


def test_a_target_that_fits_gets_none() -> None:
    assert found(plan(4000)) == []
    assert hint(plan(4000), sizes, disk) == []


def test_a_target_of_which_none_can_be_made_gets_none() -> None:
    assert hint(plan(900), lambda bits: 0, disk) == []


def test_the_bytes_of_copies_that_pinned_weights_replace_pin_more() -> None:
    apart, shared = (
        Speed(SLOW).drafted(plan(1400), 1800 * MIB, "draft", 450 * MIB, is_copy=is_copy)
        for is_copy in (False, True)
    )
    assert 0 < shared.seconds < apart.seconds


def test_the_fastest_candidate_comes_first() -> None:
    """A round of three tokens in two seconds, one of one in half a second, one of five in four."""
    some = [Strategy((3, 3), 2.0, 1.0), Strategy((1, 1), 0.0, 0.4, 0.1), Strategy((5, 5), 1, 4)]
    assert [one.seconds for one in choose(some)] == [0.5, 2.0, 4]


def test_a_draft_whose_steps_take_longer_than_it_saves_is_slower_than_none() -> None:
    speed, poor = Speed(SLOW), Guessing((1.1, 1.2), 10, 3.0)
    alone = speed.alone(plan(900), 1800 * MIB)
    drafted = speed.drafted(plan(900), 1800 * MIB, "draft", 400 * MIB, poor)
    assert choose([drafted, alone])[0] is alone
