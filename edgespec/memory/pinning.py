"""Chooses how a target's weights are cut, which segments are pinned, and the size of the ring.

Pure arithmetic on sizes. It knows no rows of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

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

    @property
    def pinning_bytes(self) -> int:
        """Bytes that pinning it takes, less those of copies that it replaces."""
        return max(0, self.slot_bytes - self.copy_bytes)


def least_ring(segmentations: Sequence[Sequence[SegmentSize]]) -> int:
    return min(_ring(segments, MIN_RING_SLOTS) for segments in segmentations)


def choose_cut(segmentations: Sequence[Sequence[SegmentSize]], room: int) -> int:
    """Index of the coarsest segmentation that needs no ring, or one within RING_SHARE, or within
    WHOLE_RING_SHARE if all that are within RING_SHARE divide layers."""
    whole = [segments for segments in segmentations if not _divides_layers(segments)]
    choices = (whole, RING_SHARE), (whole, WHOLE_RING_SHARE), (segmentations, RING_SHARE)
    for allowed, share in choices:
        for segments in allowed:
            if _pinning_bytes(segments) <= room or _ring(segments, RING_SLOTS) <= share * room:
                return segmentations.index(segments)
    rings = [_ring(segments, MIN_RING_SLOTS) for segments in segmentations]
    return rings.index(min(rings))


def _divides_layers(segments: Sequence[SegmentSize]) -> bool:
    """True if it has slices of other matrices than the output head."""
    return len({segment.slice_of for segment in segments} - {""}) > 1


def pin(segments: Sequence[SegmentSize], room: int) -> tuple[frozenset[int], int]:
    """Indices of the pinned segments, spread evenly over the depth, and bytes of the ring.

    Segments far larger than the others (an output head) are pinned first: streamed, they would
    need a ring as large as themselves.
    """
    if _pinning_bytes(segments) <= room:
        return frozenset(range(len(segments))), 0
    first = _oversized(segments)
    best: tuple[int, frozenset[int], int] = (-1, frozenset(), 0)
    for head in ((), first) if first else ((),):
        others = [i for i in range(len(segments)) if i not in head]
        for slots in (RING_SLOTS, MIN_RING_SLOTS):
            ring = _ring([segments[i] for i in others], slots)
            left = room - ring - _pinning_bytes([segments[i] for i in head])
            if left < 0:
                continue
            chosen = frozenset((*head, *_chosen(segments, others, left)))
            pinned_bytes = sum(segments[i].nbytes for i in chosen)
            if pinned_bytes > best[0]:
                best = (pinned_bytes, chosen, ring)
            break
    _, pinned, ring_bytes = best
    return pinned, ring_bytes


def _chosen(segments: Sequence[SegmentSize], others: Sequence[int], room: int) -> list[int]:
    """Indices among `others` of segments to pin, evenly spread; first those that replace copies.

    A copy is replaced by a whole matrix, so that its slices are pinned together or not at all.
    """
    copied = [i for i in others if segments[i].copy_bytes]
    together = groupby(copied, lambda i: segments[i].slice_of or i)
    alone = [[i] for i in others if not segments[i].copy_bytes]
    chosen: list[int] = []
    for units in ([list(unit) for _, unit in together], alone):
        sizes = [_pinning_bytes([segments[i] for i in unit]) for unit in units]
        taken = spread_evenly(sizes, room)
        room -= sum(sizes[n] for n in taken)
        chosen += (i for n in taken for i in units[n])
    return chosen


def _oversized(segments: Sequence[SegmentSize]) -> tuple[int, ...]:
    sizes = sorted(segment.slot_bytes for segment in segments)
    median = sizes[len(sizes) // 2]
    return tuple(i for i, segment in enumerate(segments) if segment.slot_bytes > 2 * median)


def spread_evenly(sizes: Sequence[int], room: int) -> list[int]:
    """Evenly spaced indices of `sizes`, in order of execution, whose sum fits into `room`.

    Going over the depth, a part is taken whenever the bytes taken so far fall behind their
    average share.
    """
    total = sum(sizes)
    if total == 0:
        return []
    share = min(1.0, room / total)
    seen = taken = 0
    chosen = []
    for i, size in enumerate(sizes):
        seen += size
        if taken + size <= min(share * seen + size / 2, room):
            chosen.append(i)
            taken += size
    return chosen


def ring_for(sizes: Sequence[int], slots: int) -> int:
    """Bytes of a ring that holds any `slots` segments with slots of `sizes` at once."""
    return sum(sorted(sizes, reverse=True)[:slots])


def _ring(segments: Sequence[SegmentSize], slots: int) -> int:
    return ring_for([segment.slot_bytes for segment in segments], slots)


def _pinning_bytes(segments: Sequence[SegmentSize]) -> int:
    return sum(segment.pinning_bytes for segment in segments)
