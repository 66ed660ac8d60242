"""Divides a memory budget: what every row gets, which segments are pinned, how large the ring is.

Pure arithmetic on sizes. It knows no model library and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgespec.errors import BudgetError
from edgespec.memory.experts import ExpertSizes, room_for_experts

MIB = 1 << 20
LOADING = "loading"
"""Label of rows that are needed only until their model is loaded."""
RING_SLOTS = 3
"""One slot computed on, one read, one ready; two are the least that overlap reads and compute."""
LEAST_RING_SLOTS = 2
RING_SHARE = 0.1
"""Share of the room for weights that the ring takes; a larger one means that segments should be cut
smaller. With a fifth, a model of 1 GiB under half of that was 4 % slower at 300 MB/s, and no faster
at 1.2 GB/s."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes that one owner needs for one thing."""

    owner: str
    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """A segment as far as planning sees it: bytes of weights, and bytes that its slot takes."""

    name: str
    nbytes: int
    slot_bytes: int
    slice_of: str = ""
    """The matrix of which it holds some rows; empty where it holds whole ones."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The division of a memory budget. `rows` add up to `planned_bytes`."""

    budget_bytes: int
    rows: tuple[MemoryRow, ...]
    segments: tuple[SegmentSize, ...]
    pinned: frozenset[int]
    """Indices into `segments`."""
    ring_bytes: int
    paged: bool
    """False: all weights are resident and there is no pager."""
    smallest_bytes: int
    """The smallest budget that would work for the same request."""
    enforced: bool = True
    """False where the platform offers no way to hold the budget."""
    notes: tuple[str, ...] = field(default=())
    gpu_budget_bytes: int = 0
    """Budget of a GPU's own memory, which `budget_bytes` does not include; 0 where none is
    planned."""
    gpu_rows: tuple[MemoryRow, ...] = ()
    """Division of the GPU's memory."""
    experts: ExpertSizes | None = None
    """Sizes of a mixture's experts that are read one by one; they are not in `segments`."""
    expert_bytes: int = 0
    """Room for experts that stay in memory until others need it."""
    cut: int = 0
    """Index of `segments` among the ways to cut the weights, coarse first."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Index of the chosen batch size among those that a model's needs offer, by owner."""
    batch_size: int = 0
    """Tokens of a prompt that the target computes at once, at most."""
    ctx_size: int = 0
    """Context of the target in tokens."""
    max_nodes: int = 1
    """Most nodes of one pass of the target, the root included."""
    n_parallel: int = 1
    """Most texts that are generated at once."""

    @property
    def planned_bytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def has_draft(self) -> bool:
        """True if a draft guesses: loading leaves out a layer of the target's own that cannot."""
        return any(row.owner == "draft" for row in self.rows)

    @property
    def gpu_planned_bytes(self) -> int:
        return sum(row.nbytes for row in self.gpu_rows)

    @property
    def n_pinned(self) -> int:
        return len(self.pinned)

    @property
    def pinned_bytes(self) -> int:
        return sum(self.segments[i].nbytes for i in self.pinned)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights read in every pass."""
        if not self.paged:
            return 0
        return sum(segment.nbytes for segment in self.segments) - self.pinned_bytes

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that a pass over one token reads: streamed weights widened to whole blocks, and of
        a mixture the experts that are probably missing."""
        return self.expected_bytes(1)

    @property
    def expert_share(self) -> float:
        """Share of a mixture's experts that fits into memory at once."""
        return self.expert_bytes / self.experts.room_bytes if self.experts else 0.0

    def expected_bytes(self, n_nodes: int) -> int:
        """Bytes that a pass over `n_nodes` nodes will probably read."""
        if not self.paged:
            return 0
        if self.experts is None:
            return self.streamed_read_bytes
        expected = self.experts.expected_bytes(self.expert_bytes, n_nodes)
        return self.streamed_read_bytes + int(expected)

    @property
    def streamed_read_bytes(self) -> int:
        """Streamed weights widened to whole blocks: what the ring reads in a pass."""
        if not self.paged:
            return 0
        return sum(s.slot_bytes for i, s in enumerate(self.segments) if i not in self.pinned)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "budget_bytes": self.budget_bytes,
            "planned_bytes": self.planned_bytes,
            "smallest_bytes": self.smallest_bytes,
            "paged": self.paged,
            "enforced": self.enforced,
            "segments": len(self.segments),
            "segments_pinned": self.n_pinned,
            "pinned_bytes": self.pinned_bytes,
            "streamed_bytes": self.streamed_bytes,
            "ring_bytes": self.ring_bytes,
            "batch_size": self.batch_size,
            "ctx_size": self.ctx_size,
            "max_nodes": self.max_nodes,
            "n_parallel": self.n_parallel,
            "bytes_per_pass": self.bytes_per_pass,
            "experts": asdict(self.experts) if self.experts else None,
            "expert_cache_bytes": self.expert_bytes,
            "rows": [asdict(row) for row in self.rows],
            "gpu_budget_bytes": self.gpu_budget_bytes,
            "gpu_planned_bytes": self.gpu_planned_bytes,
            "gpu_rows": [asdict(row) for row in self.gpu_rows],
            "notes": list(self.notes),
        }


def loaded_before(later_bytes: int, rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Rows of a model that is loaded before others take at least `later_bytes`.

    What only loading takes is free again by then, and counts as far as it is more.
    """
    more = (
        MemoryRow(row.owner, LOADING, row.nbytes - later_bytes)
        for row in rows
        if row.what == LOADING and row.nbytes > later_bytes
    )
    return [*(row for row in rows if row.what != LOADING), *more]


def plan_memory(
    budget_bytes: int,
    fixed: Sequence[MemoryRow],
    segmentations: Sequence[Sequence[SegmentSize]],
    resident: Sequence[MemoryRow] | None = None,
    paged: Sequence[MemoryRow] = (),
    enforced: bool = True,
    margin_bytes: int = 0,
    experts: ExpertSizes | None = None,
) -> MemoryPlan:
    """Plan the budget of one process.

    `fixed` is needed in any case. `resident` is what the target's weights take when all of them
    stay in memory (None: it cannot); `paged` is what paging needs besides pinned segments and ring.
    `segmentations` are ways to cut the target's weights, coarse first: the coarsest whose ring
    stays within RING_SHARE of the room wins, because fewer, larger reads and fewer stops of the
    computation cost less. `experts` are a mixture's, which no segment holds. Raises BudgetError
    with the smallest budget that works; `margin_bytes` are added to it, for a process that takes so
    much more before it loads anything.
    """
    smallest = least_bytes(fixed, segmentations, resident, paged, experts)
    named = smallest + margin_bytes
    if budget_bytes < smallest:
        # what cannot be paged has no ring
        needed = [*fixed, *paged] if segmentations else [*fixed, *(resident or ())]
        rest = "the ring" if segmentations else "smaller things"
        raise BudgetError(_refusal(budget_bytes, named, needed, rest), named)
    if resident is not None:
        rows = (*fixed, *resident)
        if sum(row.nbytes for row in rows) <= budget_bytes:
            return MemoryPlan(
                budget_bytes, rows, (), frozenset(), 0, False, named, enforced=enforced
            )
    room = budget_bytes - _total(fixed) - _total(paged)
    expert_bytes = 0
    if experts is not None:
        dense_bytes = _slot_bytes(segmentations[0])
        expert_bytes = room_for_experts(experts, dense_bytes, _least_ring(segmentations), room)
    cut = _choose_cut(segmentations, room - expert_bytes)
    segments = segmentations[cut]
    pinned, ring_bytes = _pin(segments, room - expert_bytes)
    pinned_bytes = sum(segments[i].slot_bytes for i in pinned)
    if experts is not None:
        expert_bytes = min(experts.room_bytes, room - pinned_bytes - ring_bytes)
    rows = (
        *fixed,
        *paged,
        MemoryRow("target", "ring of streamed segments", ring_bytes),
        MemoryRow("target", "pinned segments", pinned_bytes),
        MemoryRow("target", "cache of experts", expert_bytes),
    )
    return MemoryPlan(
        budget_bytes,
        rows,
        tuple(segments),
        pinned,
        ring_bytes,
        True,
        named,
        enforced=enforced,
        experts=experts,
        expert_bytes=expert_bytes,
        cut=cut,
    )


def least_bytes(
    fixed: Sequence[MemoryRow],
    segmentations: Sequence[Sequence[SegmentSize]],
    resident: Sequence[MemoryRow] | None,
    paged: Sequence[MemoryRow],
    experts: ExpertSizes | None = None,
) -> int:
    """The least that a model takes, resident or paged through the smallest ring."""
    choices = [_total(resident)] if resident is not None else []
    if segmentations:
        cache_bytes = experts.least_bytes if experts else 0
        choices.append(_total(paged) + _least_ring(segmentations) + cache_bytes)
    return _total(fixed) + min(choices)


def _total(rows: Sequence[MemoryRow]) -> int:
    return sum(row.nbytes for row in rows)


def _refusal(budget_bytes: int, smallest: int, rows: Sequence[MemoryRow], rest: str) -> str:
    parts = ", ".join(
        f"{row.owner} {row.what} {row.nbytes / MIB:.0f}"
        for row in sorted(rows, key=lambda row: -row.nbytes)
        if row.nbytes >= MIB
    )
    return (
        f"the memory budget of {budget_bytes / MIB:.0f} MiB is too small: at least "
        f"{-(-smallest // MIB)} MiB are needed (in MiB: {parts}, the rest for {rest}); "
        "raise --memory-budget or lower --ctx-size"
    )


def _ring(segments: Sequence[SegmentSize], slots: int) -> int:
    """A ring that holds the `slots` largest neighbours, whatever their order of reading."""
    sizes = sorted((segment.slot_bytes for segment in segments), reverse=True)
    return sum(sizes[:slots]) if sizes else 0


def _least_ring(segmentations: Sequence[Sequence[SegmentSize]]) -> int:
    return min(_ring(segments, LEAST_RING_SLOTS) for segments in segmentations)


def _slot_bytes(segments: Sequence[SegmentSize]) -> int:
    return sum(segment.slot_bytes for segment in segments)


def _choose_cut(segmentations: Sequence[Sequence[SegmentSize]], room: int) -> int:
    """Index of the coarsest cut that needs no ring, or no large one."""
    for index, segments in enumerate(segmentations):
        if _slot_bytes(segments) <= room or _ring(segments, RING_SLOTS) <= RING_SHARE * room:
            return index
    rings = [_ring(segments, LEAST_RING_SLOTS) for segments in segmentations]
    return rings.index(min(rings))


def _pin(segments: Sequence[SegmentSize], room: int) -> tuple[frozenset[int], int]:
    """Pin as many bytes as fit beside the ring, evenly over the depth.

    Segments far larger than the others (an output head) come first: streamed, they would make
    the ring as large as themselves.
    """
    if _slot_bytes(segments) <= room:
        return frozenset(range(len(segments))), 0
    first = _oversized(segments)
    best: tuple[int, frozenset[int], int] = (-1, frozenset(), 0)
    for head in ((), first) if first else ((),):
        others = [i for i in range(len(segments)) if i not in head]
        for slots in (RING_SLOTS, LEAST_RING_SLOTS):
            ring = _ring([segments[i] for i in others], slots)
            left = room - ring - sum(segments[i].slot_bytes for i in head)
            if left < 0:
                continue
            taken = spread_evenly([segments[i].slot_bytes for i in others], left)
            chosen = frozenset((*head, *(others[i] for i in taken)))
            pinned_bytes = sum(segments[i].nbytes for i in chosen)
            if pinned_bytes > best[0]:
                best = (pinned_bytes, chosen, ring)
            break
    _, pinned, ring_bytes = best
    return pinned, ring_bytes


def _oversized(segments: Sequence[SegmentSize]) -> tuple[int, ...]:
    sizes = sorted(segment.slot_bytes for segment in segments)
    median = sizes[len(sizes) // 2]
    return tuple(i for i, segment in enumerate(segments) if segment.slot_bytes > 2 * median)


def spread_evenly(sizes: Sequence[int], room: int) -> list[int]:
    """Indices of as many parts, in order of execution, as fit into `room`, evenly spaced.

    Walking over the depth, a part is taken whenever the bytes taken so far fall behind the share
    that all of them can have.
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
