"""The port of stores, rings and caches that serve weights to a model's passes, and their totals.

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

    A ring serves weights that every pass needs in one order, a cache of experts those that a layer
    just chose: the methods that serve them are each store's own.
    """

    @property
    def bytes_read(self) -> int:
        """Bytes read for passes since loading."""

    @property
    def stall_s(self) -> float:
        """Seconds in which passes waited for reads since loading."""

    @property
    def read_s(self) -> float:
        """Seconds spent reading streamed segments since loading, overlapped with computing or
        not."""

    @property
    def choice_stall_s(self) -> float:
        """Part of `stall_s` for experts that the tokens of a pass chose; grows with their
        number."""

    @property
    def first_row_stall_s(self) -> float:
        """Part of `choice_stall_s` for experts that the first token of a pass chose."""

    def cancel(self) -> None:
        """Wake threads that wait for weights, and let none wait until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes read and seconds waited for by stores, at one moment or between two."""

    nbytes: int = 0
    stall_s: float = 0.0
    choice_stall_s: float = 0.0
    first_row_stall_s: float = 0.0
    read_s: float = 0.0

    def __sub__(self, earlier: Reads) -> Reads:
        return Reads(
            self.nbytes - earlier.nbytes,
            self.stall_s - earlier.stall_s,
            self.choice_stall_s - earlier.choice_stall_s,
            self.first_row_stall_s - earlier.first_row_stall_s,
            self.read_s - earlier.read_s,
        )


def reads_of(stores: Sequence[Store]) -> Reads:
    """Sums over stores since the model was loaded."""
    return Reads(
        sum(store.bytes_read for store in stores),
        sum(store.stall_s for store in stores),
        sum(store.choice_stall_s for store in stores),
        sum(store.first_row_stall_s for store in stores),
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
