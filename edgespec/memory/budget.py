"""Divides a memory budget: the bytes of each row, the pinned segments and the size of the ring.

Pure arithmetic on sizes. It knows no model library and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from edgespec.errors import BudgetError, Sentence, setting
from edgespec.memory.expert_sizes import ExpertSizes, room_for_experts
from edgespec.memory.pinning import (
    Order,
    SegmentSize,
    choose_cut,
    divide,
    least_ring,
    pinning_order,
)

MIB = 1 << 20
LOADING = "more while loading"
"""Label of rows whose memory is free again once their model is loaded. A model's needs have all of
it, a plan what it exceeds the rows by that are taken later."""
RING, PINNED, EXPERT_CACHE = "ring of streamed segments", "pinned segments", "cache of experts"
"""Labels of the rows of a paged target that change with the budget."""
PROMPT_BUFFERS = "compute buffers of prompts"
"""Label of the row for what only large batches of a prompt compute in."""
REQUESTS = "requests"
"""Label of the row for what texts and a server's requests take, and of other models beside."""
COPIES = "copies of streamed weights"
"""Label of the row of a draft that computes with the target's weights where they are pinned, and
with coarser copies of the others."""
SHOWN = (
    *("budget_bytes", "planned_bytes", "smallest_bytes", "paged", "enforced", "pinned_bytes"),
    *("streamed_bytes", "ring_bytes", "bytes_per_pass", "batch_size", "ctx_size", "max_nodes"),
    *("n_parallel", "text_bytes", "gpu_budget_bytes", "gpu_planned_bytes"),
)
"""Numbers of a plan in reports."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One line of a plan: bytes that `owner` needs for `what`."""

    owner: str
    what: str
    nbytes: int
    is_late: bool = False
    """True if nothing of it is taken before all models are loaded."""
    is_lent: bool = False
    """True if streamed weights have it while texts do not need it."""

    def as_dict(self) -> dict[str, str | int]:
        """The row as a plan shows it."""
        return {"owner": self.owner, "what": self.what, "nbytes": self.nbytes}


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
    """False if the platform cannot enforce the budget."""
    notes: tuple[str, ...] = field(default=())
    gpu_budget_bytes: int = 0
    """Budget of the GPU's memory, not included in `budget_bytes`; 0 if no GPU is used."""
    gpu_rows: tuple[MemoryRow, ...] = ()
    """Division of the GPU's memory."""
    experts: ExpertSizes | None = None
    """Sizes of experts that are read one by one, which `segments` does not contain."""
    expert_bytes: int = 0
    """Size of the expert cache."""
    cut: int = 0
    """Index of `segments` among the possible segmentations, coarsest first."""
    order: Order = ()
    """The order in which segments are pinned."""
    n_kept: int = 0
    """Entries of `order` that stay pinned once loaded: a draft computes with what they hold."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Index of the chosen batch size in `ModelNeeds.batches`, by owner."""
    batch_size: int = 0
    """Most prompt tokens in one batch of the target."""
    ctx_size: int = 0
    """Context of the target in tokens."""
    max_nodes: int = 1
    """Most nodes of one pass of the target, the root included."""
    n_parallel: int = 1
    """Most texts that are generated at once."""
    text_bytes: int = 0
    """About what each further text at once takes; 0 if the models write one at a time."""
    texts_alter_prompts: bool = False
    """With several texts at once, a prompt would round otherwise and take longer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(map(Sentence, self.notes)))

    @property
    def planned_bytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def has_draft(self) -> bool:
        """True if there is a draft. Without one, the target's own prediction layers (MTP) are not
        loaded."""
        return any(row.owner == "draft" for row in self.rows)

    @property
    def looks_up(self) -> bool:
        """True if a target that pages without a draft has buffers for guesses from its text."""
        return self.paged and not self.has_draft and self.max_nodes > self.n_parallel

    @property
    def gpu_planned_bytes(self) -> int:
        return sum(row.nbytes for row in self.gpu_rows)

    @property
    def pinned_bytes(self) -> int:
        return sum(self.segments[i].nbytes for i in self.pinned)

    @property
    def shared(self) -> frozenset[int]:
        """Indices of the pinned segments that a draft computes with, too."""
        return frozenset(i for i in self.pinned if self.segments[i].copy_bytes)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights read in every pass."""
        return sum(min(segment.nbytes, segment.read_bytes) for segment in self._streamed)

    @property
    def bytes_per_pass(self) -> int:
        """Expected bytes read by a pass over one token: streamed weights in whole blocks, and
        experts that are probably not cached."""
        return self.expected_bytes(1, self.prompt_bytes)

    @property
    def least_bytes_per_pass(self) -> int:
        """Bytes read by a pass over one token while the context is nearly empty."""
        return self.expected_bytes(1, self.lent_bytes)

    @property
    def prompt_bytes(self) -> int:
        """Bytes that weights have but for large batches of a prompt."""
        return sum(row.nbytes for row in self.rows if row.what == PROMPT_BUFFERS and row.is_lent)

    @property
    def lent_bytes(self) -> int:
        """Bytes that weights have while the context is nearly empty and no prompt is read."""
        return sum(row.nbytes for row in self.rows if row.is_lent)

    def expected_bytes(self, n_nodes: int, lent_bytes: int = 0) -> int:
        """Expected bytes read by a pass over `n_nodes` nodes; what is lent keeps experts last."""
        streamed = self.streamed_read_bytes - lent_bytes
        cache_bytes = self.expert_bytes + max(0, -streamed)
        missing = self.experts.expected_bytes(cache_bytes, n_nodes) if self.experts else 0
        return max(0, streamed) + int(missing)

    @property
    def upper_bytes(self) -> int:
        """Bytes of a draft's copies that are the upper bits of streamed weights."""
        is_nested = any(segment.read_bytes < segment.slot_bytes for segment in self._streamed)
        return sum(row.nbytes for row in self.rows if row.what == COPIES) * is_nested

    @property
    def streamed_read_bytes(self) -> int:
        """Bytes that the ring reads in a pass: streamed weights in whole blocks."""
        return sum(segment.read_bytes for segment in self._streamed)

    @property
    def _streamed(self) -> list[SegmentSize]:
        return [segment for i, segment in enumerate(self.segments) if i not in self.pinned]

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        shown = {name: getattr(self, name) for name in SHOWN}
        return shown | {
            "segments": len(self.segments),
            "segments_pinned": len(self.pinned),
            "experts": asdict(self.experts) if self.experts else None,
            "expert_cache_bytes": self.expert_bytes,
            "rows": [row.as_dict() for row in self.rows],
            "gpu_rows": [row.as_dict() for row in self.gpu_rows],
            "notes": list(self.notes),
        }


def beside_later(rows: Sequence[MemoryRow], later_bytes: int) -> list[MemoryRow]:
    """Rows of a model, with what its LOADING rows exceed `later_bytes` by.

    As many bytes are taken only when the model is loaded, when its LOADING rows are free again.
    """
    more = (
        replace(row, nbytes=row.nbytes - later_bytes)
        for row in rows
        if row.what == LOADING and row.nbytes > later_bytes
    )
    return [*(row for row in rows if row.what != LOADING), *more]


def loaded_last(rows: Sequence[MemoryRow], fixed: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Rows of the model that is loaded last, after which all late ones of it and `fixed` are
    taken."""
    return beside_later(rows, sum(row.nbytes for row in (*fixed, *rows) if row.is_late))


def plan_memory(
    budget_bytes: int,
    fixed: Sequence[MemoryRow],
    segmentations: Sequence[Sequence[SegmentSize]],
    resident: Sequence[MemoryRow] | None = None,
    paged: Sequence[MemoryRow] = (),
    experts: ExpertSizes | None = None,
) -> MemoryPlan:
    """Plan the budget of one process.

    `fixed` rows are always needed. `resident` rows hold all of the target's weights (None: it must
    be paged); `paged` rows are what paging needs besides pinned segments and ring. `segmentations`
    are ways to cut the target's weights, coarsest first. The coarsest whose ring takes little
    is chosen, because fewer, larger reads and fewer stops of the computation cost less.
    `experts` are those of a mixture, which no segment contains. A row of COPIES among `fixed` is
    for all of a draft's copies; pinning segments makes it smaller.

    Raises BudgetError with the smallest budget that works.
    """
    smallest = least_bytes(fixed, segmentations, resident, paged, experts)
    rows = (*fixed, *loaded_last(paged, fixed))
    whole = () if resident is None else (*fixed, *loaded_last(resident, fixed))
    if budget_bytes < smallest:
        # what cannot be paged has no ring
        needed, rest = (rows, "the ring") if segmentations else (whole, "smaller things")
        raise BudgetError(_error_text(budget_bytes, smallest, needed, rest), smallest)
    if resident is not None and _total(whole) <= budget_bytes:
        return MemoryPlan(budget_bytes, whole, (), frozenset(), 0, False, smallest)
    cut = cut_for(segmentations, budget_bytes - _total(rows), experts)
    unpinned = MemoryPlan(
        budget_bytes,
        rows,
        tuple(segmentations[cut]),
        frozenset(),
        0,
        True,
        smallest,
        experts=experts,
        cut=cut,
        order=pinning_order(segmentations[cut]),
    )
    return _loaded(divided(unpinned, budget_bytes))


def cut_for(
    segmentations: Sequence[Sequence[SegmentSize]], room: int, experts: ExpertSizes | None
) -> int:
    """Index of the segmentation for `room` bytes of weights, those of experts among them."""
    if experts is not None:
        dense_bytes = _slot_bytes(segmentations[0])
        room -= room_for_experts(experts, dense_bytes, least_ring(segmentations), room)
    return choose_cut(segmentations, room)


def divided(plan: MemoryPlan, budget_bytes: int) -> MemoryPlan:
    """The plan with its weights divided anew for another budget, the other rows as they are."""
    segments, experts, fixed = plan.segments, plan.experts, fixed_rows(plan)
    room, expert_bytes = budget_bytes - _total(fixed), 0
    if experts is not None:
        kept = {*chain.from_iterable(plan.order[: plan.n_kept])}
        others = [segment for i, segment in enumerate(segments) if i not in kept]
        least_bytes = sum(segments[i].pinning_bytes for i in kept) + least_ring([others])
        expert_bytes = room_for_experts(experts, _slot_bytes(segments), least_bytes, room)
    n_pinned, ring_bytes = divide(segments, plan.order, room - expert_bytes, plan.n_kept)
    pinned = frozenset(chain.from_iterable(plan.order[:n_pinned]))
    if experts is not None:
        room -= sum(segments[i].pinning_bytes for i in pinned) + ring_bytes
        expert_bytes = min(experts.room_bytes, room)
    replaced_bytes = sum(segments[i].copy_bytes for i in pinned)
    rows = (
        *(_less(row, replaced_bytes) if row.what == COPIES else row for row in fixed),
        MemoryRow("target", RING, ring_bytes),
        MemoryRow("target", PINNED, _slot_bytes([segments[i] for i in pinned])),
        MemoryRow("target", EXPERT_CACHE, expert_bytes),
    )
    return replace(
        plan,
        budget_bytes=budget_bytes,
        rows=rows,
        pinned=pinned,
        ring_bytes=ring_bytes,
        expert_bytes=expert_bytes,
    )


def fixed_rows(plan: MemoryPlan) -> list[MemoryRow]:
    """The rows of a plan besides the memory for weights, as if nothing were pinned."""
    replaced_bytes = sum(plan.segments[i].copy_bytes for i in plan.pinned)
    return [
        _less(row, -replaced_bytes) if row.what == COPIES else row
        for row in plan.rows
        if row.what not in (RING, PINNED, EXPERT_CACHE)
    ]


def _loaded(plan: MemoryPlan) -> MemoryPlan:
    """The plan once it is loaded: copies of what is not pinned exist, and what has none stays. What
    is read whole is pinned next, because each byte of it saves one of reading."""
    kept = (n for n, unit in enumerate(plan.order, 1) if plan.shared.intersection(unit))
    n_kept, segments = max(kept, default=0), list(plan.segments)
    for i in {*range(len(segments))} - plan.pinned:
        segments[i] = replace(segments[i], copy_bytes=0)
    nested = {i for i, one in enumerate(segments) if one.read_bytes < one.slot_bytes}
    order = (*plan.order[:n_kept], *sorted(plan.order[n_kept:], key=lambda unit: unit[0] in nested))
    return replace(plan, segments=tuple(segments), order=order, n_kept=n_kept)


def least_bytes(
    fixed: Sequence[MemoryRow],
    segmentations: Sequence[Sequence[SegmentSize]],
    resident: Sequence[MemoryRow] | None,
    paged: Sequence[MemoryRow],
    experts: ExpertSizes | None = None,
) -> int:
    """Least bytes of a model, resident or paged through the smallest ring."""
    choices = []
    if resident is not None:
        choices.append(_total(loaded_last(resident, fixed)))
    if segmentations:
        cache_bytes = experts.least_bytes if experts else 0
        paged_bytes = _total(loaded_last(paged, fixed))
        choices.append(paged_bytes + least_ring(segmentations) + cache_bytes)
    return _total(fixed) + min(choices)


def _total(rows: Sequence[MemoryRow]) -> int:
    return sum(row.nbytes for row in rows)


def _error_text(budget_bytes: int, smallest: int, rows: Sequence[MemoryRow], rest: str) -> str:
    parts = "".join(
        f"{row.owner} {row.what} {row.nbytes / MIB:.0f}, "
        for row in sorted(rows, key=lambda row: -row.nbytes)
        if row.nbytes >= MIB
    )
    return (
        f"the memory budget of {budget_bytes / MIB:.0f} MiB is too small: at least "
        f"{-(-smallest // MIB)} MiB are needed (in MiB: {parts}the rest for {rest}); "
        f"raise {setting.memory_budget} or lower {setting.ctx_size}"
    )


def _less(row: MemoryRow, nbytes: int) -> MemoryRow:
    return replace(row, nbytes=row.nbytes - nbytes)


def _slot_bytes(segments: Sequence[SegmentSize]) -> int:
    return sum(segment.slot_bytes for segment in segments)
