"""The number of texts at once that `auto` stands for."""

from __future__ import annotations

from edgespec.memory.budget import MemoryPlan, SegmentSize
from edgespec.memory.needs import best_n_parallel


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
    assert best_n_parallel([plan(1, 100), plan(2, 110), plan(4, 150)]) == 4
    assert best_n_parallel([plan(1, 100), plan(2, 110), plan(4, 230)]) == 2
    assert best_n_parallel([plan(1, 100)]) == 1


def test_no_text_drives_weights_out_of_memory() -> None:
    assert best_n_parallel([plan(1, 0), plan(2, 0), plan(4, 10)]) == 2
