"""What serves weights to a model's passes, whatever keeps them: the port of rings and caches.

Knows what was read and waited for, not where weights lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.paging.reader import Segment
from edgespec.values import ExpertStats, PagingStats


class Store(Protocol):
    """Weights that are read from files while a model computes.

    What is asked for, and when it is known, is each store's own: a ring serves what every pass
    needs in one order, a cache of experts what a layer chose a moment ago.
    """

    @property
    def bytes_read(self) -> int:
        """By passes, so far."""

    @property
    def stall_s(self) -> float:
        """In which passes waited for reads, so far."""

    @property
    def read_s(self) -> float:
        """That reading what every pass needs has taken so far, waited for or not."""

    @property
    def choice_stall_s(self) -> float:
        """Of the stall, for what the tokens of a pass had chosen: the more tokens, the longer."""

    def cancel(self) -> None:
        """Wake whoever waits for weights, and let nobody wait; lasts until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reads:
    """What stores have read and let passes wait for, at one moment or between two."""

    nbytes: int = 0
    stall_s: float = 0.0
    choice_stall_s: float = 0.0
    read_s: float = 0.0

    def __sub__(self, earlier: Reads) -> Reads:
        return Reads(
            self.nbytes - earlier.nbytes,
            self.stall_s - earlier.stall_s,
            self.choice_stall_s - earlier.choice_stall_s,
            self.read_s - earlier.read_s,
        )


def reads_of(stores: Sequence[Store]) -> Reads:
    """Since the model was loaded."""
    return Reads(
        sum(store.bytes_read for store in stores),
        sum(store.stall_s for store in stores),
        sum(store.choice_stall_s for store in stores),
        sum(store.read_s for store in stores),
    )


def paging_stats(
    segments: Sequence[Segment],
    pinned_bytes: int,
    stores: Sequence[Store],
    passes: int,
    experts: ExpertStats | None = None,
) -> PagingStats:
    """The figures that a paged model reports."""
    total, reads = sum(segment.nbytes for segment in segments), reads_of(stores)
    return PagingStats(
        segments=len(segments),
        pinned_bytes=pinned_bytes,
        streamed_bytes=total - pinned_bytes,
        bytes_read=reads.nbytes,
        stall_s=reads.stall_s,
        passes=passes,
        experts=experts,
    )
