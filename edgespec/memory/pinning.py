"""Chooses how a target's weights are cut, and divides memory between pinned segments and the ring.

Pure arithmetic on sizes. It knows no rows of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from statistics import median_high

RING_SLOTS = 3
"""One slot is computed on, one is being read, one is ready; overlap needs at least two."""
MIN_RING_SLOTS = 2
RING_SHARE = 0.1
"""Largest share of the memory for weights that the ring may take; beyond it, weights are cut into
smaller segments. With a fifth, a model of 1 GiB under a budget of half that size was 4 % slower at
300 MB/s, and no faster at 1.2 GB/s."""
WHOLE_RING_SHARE = 0.2
"""Share that it may take so that matrices of layers stay whole. Slices need a smaller ring, which
saved 2.4 % of the reads of a model of 1 GiB under 30 % of that size, and took a quarter more
processor time."""

Order = tuple[tuple[int, ...], ...]
"""Indices of segments in the order in which they are pinned; those of one entry together."""


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """Sizes of a segment for planning: bytes of its weights and bytes of its slot."""

    name: str
    nbytes: int
    slot_bytes: int
    slice_of: str = ""
    """The matrix that it holds only some rows of; empty if it holds whole matrices."""
    weights: tuple[str, ...] = ()
    """Names of the matrices that it holds, or some rows of."""
    copy_bytes: int = 0
    """Bytes of a draft's copies of its weights, which are not needed if it is pinned."""
    lower_bytes: int | None = None
    """Bytes that are read to stream it where the upper bits of its weights are a draft's."""

    @property
    def read_bytes(self) -> int:
        """Bytes that are read to stream it."""
        return self.slot_bytes if self.lower_bytes is None else self.lower_bytes

    @property
    def pinning_bytes(self) -> int:
        """Bytes that pinning it takes, less those of copies that it replaces."""
        return max(0, self.slot_bytes - self.copy_bytes)


def least_ring(segmentations: Sequence[Sequence[SegmentSize]]) -> int:
    return min(_ring(segments, MIN_RING_SLOTS) for segments in segmentations)


def choose_cut(segmentations: Sequence[Sequence[SegmentSize]], room: int) -> int:
    """Index of the coarsest segmentation that needs no ring, or one within RING_SHARE, or within
    WHOLE_RING_SHARE if all that are within RING_SHARE divide layers.

    Half of what a draft holds of nested weights counts as memory for weights, too.
    """
    # without slices of other matrices than the output head
    whole = [cut for cut in segmentations if len({one.slice_of for one in cut} - {""}) <= 1]
    choices = (whole, RING_SHARE), (whole, WHOLE_RING_SHARE), (segmentations, RING_SHARE)
    for allowed, share in choices:
        for segments in allowed:
            pinning_bytes = sum(segment.pinning_bytes for segment in segments)
            upper_bytes = sum(s.copy_bytes for s in segments if s.read_bytes < s.slot_bytes)
            most_bytes = min(room, share * (room + upper_bytes / 2))
            if pinning_bytes <= room or _ring(segments, RING_SLOTS) <= most_bytes:
                return segmentations.index(segments)
    return min(range(len(segmentations)), key=lambda n: _ring(segmentations[n], MIN_RING_SLOTS))


def pinning_order(segments: Sequence[SegmentSize]) -> Order:
    """The order in which segments are pinned: however many are, they are spread over the depth, so
    that computing on them covers reads.

    First come those far larger than others (an output head): streamed, they would need a ring as
    large as themselves. Then those that replace a draft's copies, all slices of a matrix together,
    because a copy is replaced by a whole matrix.
    """
    median = median_high([segment.slot_bytes for segment in segments] or [0])

    def rank(i: int) -> int:
        return 0 if segments[i].slot_bytes > 2 * median else 1 if segments[i].copy_bytes else 2

    def together(i: int) -> tuple[int, str | int]:
        return rank(i), (segments[i].copy_bytes > 0 and segments[i].slice_of) or i

    units: list[list[tuple[int, ...]]] = [[], [], []]
    for (its, _), unit in groupby(range(len(segments)), together):
        units[its].append(tuple(unit))
    return tuple(alike[n] for alike in units for n in spread(len(alike)))


def divide(
    segments: Sequence[SegmentSize], order: Order, room: int, n_least: int = 0
) -> tuple[int, int]:
    """Number of entries of `order` pinned in `room` bytes, and bytes of the ring for the others.

    As many as fit beside a ring of RING_SLOTS, at least `n_least`; more room never unpins one. With
    room for a smaller ring only, that is what there is.
    """
    largest: list[list[int]] = [[]]
    """The slots that a ring must hold at once beside a number of pinned entries, all first."""
    for unit in reversed(order):
        slots = [segments[i].slot_bytes for i in unit]
        largest.append(sorted([*largest[-1], *slots], reverse=True)[:RING_SLOTS])
    rings = [sum(slots) for slots in reversed(largest)]
    pinning = (sum(segments[i].pinning_bytes for i in unit) for unit in order)
    taken = list(accumulate(pinning, initial=0))
    fitting = [n for n, nbytes in enumerate(taken) if nbytes + rings[n] <= room]
    n_pinned = max([n_least, *fitting])
    return n_pinned, min(rings[n_pinned], room - taken[n_pinned])


def spread(n: int) -> list[int]:
    """The numbers below `n`, every beginning of which is spread evenly: by their reversed bits."""
    n_bits = n.bit_length()
    found = (int(f"{i:0{n_bits}b}"[::-1], 2) for i in range(1 << n_bits))
    return [i for i in found if i < n]


def _ring(segments: Sequence[SegmentSize], slots: int) -> int:
    """Bytes of a ring that holds any `slots` segments at once."""
    return sum(sorted((segment.slot_bytes for segment in segments), reverse=True)[:slots])
