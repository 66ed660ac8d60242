"""A draft that brings little is named at the end, with what leaving it out would bring."""

from __future__ import annotations

import pytest

from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.draft_worth import note_before_loading, note_on_draft
from edgespec.memory.pinning import SegmentSize
from edgespec.values import SourceStats, SpeculationStats

MIB = 1 << 20


def plan(draft_mib: int = 20, streamed_mib: int = 100) -> MemoryPlan:
    layers = (SegmentSize("layer", streamed_mib * MIB, streamed_mib * MIB),)
    rows = (MemoryRow("draft", "weights", draft_mib * MIB),) if draft_mib else ()
    return MemoryPlan(200 * MIB, rows, layers, frozenset(), MIB, streamed_mib > 0, MIB)


def stats(by_draft: int, rounds: int = 40, others: int = 0) -> SpeculationStats:
    sources = (SourceStats("draft", 100, by_draft), SourceStats("lookup", 10, others))
    return SpeculationStats(rounds=rounds, accepted=by_draft + others, sources=sources)


def test_a_useless_draft_is_named_with_the_gain() -> None:
    note = note_on_draft(plan(), stats(0))
    assert note is not None
    assert "0 of 40 tokens" in note and "1.25 times" in note and "draft=None" in note


def test_guesses_from_the_text_stay_in_the_count() -> None:
    note = note_on_draft(plan(), stats(4, others=40))
    assert note is not None and "1.19 times" in note


def test_a_draft_that_pays_for_its_memory_is_left_alone() -> None:
    assert note_on_draft(plan(), stats(10)) is None


@pytest.mark.parametrize(
    ("planned", "measured"),
    [
        (plan(draft_mib=0), stats(0)),
        (plan(streamed_mib=0), stats(0)),
        (plan(), stats(0, rounds=8)),
    ],
)
def test_nothing_is_said_without_a_draft_without_paging_or_of_a_short_text(
    planned: MemoryPlan, measured: SpeculationStats
) -> None:
    assert note_on_draft(planned, measured) is None


def test_a_target_that_would_fit_without_it_says_so() -> None:
    note = note_on_draft(plan(draft_mib=30, streamed_mib=30), stats(0))
    assert note is not None and "would read nothing" in note


def test_a_ratio_to_reading_nothing_is_not_told() -> None:
    """A target that fits without its head was told 603.2 times the speed."""
    paired, fits = plan(draft_mib=50, streamed_mib=40), plan(draft_mib=0, streamed_mib=0)
    note = note_before_loading("head", paired, fits, 603.2)
    assert note.endswith("without it nothing: all weights stay in memory then")
    note = note_before_loading("head", paired, plan(draft_mib=0, streamed_mib=10), 4.0)
    assert note.endswith("4.0 times the speed is expected without it")
