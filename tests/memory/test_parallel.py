"""The number of texts at once that `auto` stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.memory.places import auto_texts, best_n_parallel, costs_one_text_little, has_room_for


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


def test_the_most_texts_for_the_bytes_of_a_pass_are_chosen() -> None:
    assert best_n_parallel([plan(1, 100), plan(2, 110), plan(4, 150)]).n_parallel == 4
    assert best_n_parallel([plan(1, 100), plan(2, 110), plan(4, 230)]).n_parallel == 2
    assert best_n_parallel([plan(1, 100)]).n_parallel == 1


def test_no_text_drives_weights_out_of_memory() -> None:
    assert best_n_parallel([plan(1, 0), plan(2, 0), plan(4, 10)]).n_parallel == 2


def paged(pinned_bytes: int, text_bytes: int = 0) -> MemoryPlan:
    """A plan with two segments, the second of which is streamed."""
    segments = (SegmentSize("first", pinned_bytes, 0), SegmentSize("second", 100, 100))
    return replace(
        plan(1, 100),
        segments=segments,
        pinned=frozenset({0}),
        text_bytes=text_bytes,
        budget_bytes=0,
    )


@pytest.mark.parametrize(("text_bytes", "most"), [(20, 2), (7, 3), (2, 8), (21, 1)])
def test_places_may_cost_a_fiftieth_of_the_pinned_bytes(text_bytes: int, most: int) -> None:
    alone = paged(1000, text_bytes)
    assert max([1, *(n for n in range(2, 9) if has_room_for(n, alone))]) == most


def test_places_of_a_resident_model_may_cost_all_unused_memory() -> None:
    alone = replace(plan(1, 0), budget_bytes=100, rows=(MemoryRow("target", "weights", 40),))
    assert has_room_for(4, replace(alone, text_bytes=20))
    assert not has_room_for(5, replace(alone, text_bytes=20))


def test_a_text_alone_keeps_its_pinned_bytes_its_weights_and_its_draft() -> None:
    assert costs_one_text_little(paged(980), paged(1000))
    assert not costs_one_text_little(paged(979), paged(1000))
    assert not costs_one_text_little(plan(2, 10), plan(1, 0))
    guessing = replace(plan(1, 0), rows=(MemoryRow("draft", "weights", 1),))
    assert not costs_one_text_little(plan(2, 0), guessing)
    assert costs_one_text_little(guessing, guessing)


@pytest.mark.parametrize("keeps_one_text_fast", [False, True])
def test_no_number_of_texts_is_chosen_that_would_alter_a_prompt(keeps_one_text_fast: bool) -> None:
    def planned_for(n_texts: int) -> MemoryPlan:
        return replace(plan(n_texts, 0), text_bytes=1, texts_alter_prompts=True)

    chosen = auto_texts(planned_for, keeps_one_text_fast)
    assert chosen is not None and chosen.n_parallel == 1


def test_the_most_places_that_cost_little_are_taken() -> None:
    asked = []

    def planned_for(n_texts: int) -> MemoryPlan | None:
        asked.append(n_texts)
        spare = 10 - n_texts if n_texts < 8 else -1
        return replace(plan(n_texts, 0), text_bytes=1, budget_bytes=9) if spare > 0 else None

    chosen = auto_texts(planned_for, keeps_one_text_fast=True)
    assert chosen is not None and chosen.n_parallel == 4
    assert asked == [1, 8, 4]
