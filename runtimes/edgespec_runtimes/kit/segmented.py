"""Weights in segments, of which some are pinned and the others streamed in order of use.

Reads them, counts them, and changes between passes what is pinned. How weights are used where they
lie is a runtime's own business.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import Cancelled
from edgespec.memory.budget import MemoryPlan, divided
from edgespec.paging.pager import PinnedSegments, WeightPager
from edgespec.paging.reader import Reader, Segment
from edgespec.paging.store import Store, reads_of
from edgespec.ports import Progress
from edgespec.tracing.spans import OFF, Trace
from edgespec.values import PagingStats

N_STEPS, LEAST_STEP_CELLS = 4, 256
"""Steps in which a context that is half full takes as much memory again from the weights, and
least cells of a step."""


class ContextSize(NamedTuple):
    """Memory of a context's keys and values that is taken as its cells are filled."""

    n_cells: int = 0
    """0 if all of it is taken at once."""
    cell_bytes: int = 0
    rest_bytes: int = 0
    """Bytes that are taken before the first cell is filled, at most."""

    def unused_bytes(self, n_filled: int) -> int:
        """Bytes that weights may have while at most so many cells are filled."""
        step = max(LEAST_STEP_CELLS, (1 << n_filled.bit_length() >> 1) // N_STEPS)
        n_filled = step * max(1, -(-n_filled // step))
        return max(0, (self.n_cells - n_filled) * self.cell_bytes - self.rest_bytes)


class Group(Protocol):
    """Weights that form a segment."""

    @property
    def segment(self) -> Segment: ...


G = TypeVar("G", bound=Group)


class Division(Generic[G]):
    """The segments of one cut of the weights, some of them pinned."""

    def __init__(self, groups: Sequence[G], pinned: frozenset[int]) -> None:
        self.groups = tuple(groups)
        self.pinned = pinned
        self.streamed = [group for i, group in enumerate(groups) if i not in pinned]

    @property
    def pinned_groups(self) -> list[G]:
        return [self.groups[i] for i in sorted(self.pinned)]


class SegmentedWeights(Closeable, Generic[G]):
    """Base of a runtime's paged weights, which are pinned, streamed and let go while it is used.

    A runtime calls `_use` once before anything is read.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        reader: Reader,
        is_stopped: Callable[[], bool],
        trace: Trace = OFF,
    ) -> None:
        self.context = ContextSize()
        self._n_cells = 0
        """Cells of the context in use, and those that the next pass fills."""
        self._lent_bytes = 0
        """Further memory of the next pass that it does not use."""
        self._plan = self._wanted = plan
        """The plan, and its division that holds while the context is not full."""
        self._present: MemoryPlan | None = plan
        """None after a change that failed."""
        self._applied = threading.Event()
        self._changing = threading.Lock()
        self.pager: WeightPager | None = None
        self.passes = 0
        self._reader = reader
        self._pinned = PinnedSegments(trace)
        self._is_stopped = is_stopped
        self._trace = trace

    @property
    def pinned_bytes(self) -> int:
        return sum(group.segment.nbytes for group in self._arranged.pinned_groups)

    @property
    def stores(self) -> Sequence[Store]:
        """The stores that read weights while passes compute."""
        return [self.pager] if self.pager else []

    @property
    def stats(self) -> PagingStats:
        reads = reads_of(self.stores)
        streamed = (group.segment for group in self._arranged.streamed)
        return PagingStats(
            segments=len(self._arranged.groups),
            pinned_bytes=self.pinned_bytes,
            streamed_bytes=sum(min(one.nbytes, one.read_bytes) for one in streamed),
            bytes_read=reads.bytes_read,
            stall_s=reads.stall_s,
            merge_s=self.pager.merge_s if self.pager else 0.0,
            passes=self.passes,
        )

    def resume(self) -> None:
        for store in self.stores:
            store.resume()

    def cancel(self) -> None:
        for store in self.stores:
            store.cancel()

    def divide(self, plan: MemoryPlan) -> threading.Event:
        with self._changing:
            self._plan = plan
            self._applied = threading.Event()
            self._divide(is_new=True)
            return self._applied

    def fill_context(self, n_cells: int) -> None:
        """Call before the first `n_cells` of the context are filled: gives their memory up, and
        reads nothing. What there is room for is pinned when the next pass begins."""
        self._n_cells = n_cells
        self._make_way()

    def lend(self, nbytes: int) -> None:
        """Have `nbytes` of other memory from now on, in the way of `fill_context`."""
        self._lent_bytes = nbytes
        self._make_way()

    def _make_way(self) -> None:
        """Give up what the next pass uses."""
        with self._changing:
            self._divide()
            wanted, present = self._wanted, self._present
        if present is None or wanted.budget_bytes < present.budget_bytes:
            self._present = None
            self._make_room(wanted)

    def settle(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Arrive at the division that was asked for.

        Raises WeightReadError, and Cancelled once `is_stopped`; the next call goes on.
        """
        with self._changing:
            wanted, applied = self._wanted, self._applied
        if wanted is not self._present:
            self._present = None
            self._approach(wanted, is_stopped)
            self._present = wanted
        applied.set()

    def _divide(self, is_new: bool = False) -> None:
        """Find the division for what the next pass uses, if that or the plan is new."""
        unused_bytes = self.context.unused_bytes(self._n_cells) + self._lent_bytes
        budget_bytes = self._plan.budget_bytes + unused_bytes
        if is_new or budget_bytes != self._wanted.budget_bytes:
            self._wanted = divided(self._plan, budget_bytes)

    def _fill(self, groups: Sequence[G], progress: Progress | None) -> None:
        """Pin groups and start streaming the others. Raises WeightReadError and Cancelled."""
        for group in one_by_one(groups, self._is_stopped, "reading pinned weights", progress):
            self._pin(group, self._is_stopped)
        self._stream(self._wanted.ring_bytes)

    def _approach(self, wanted: MemoryPlan, is_stopped: Callable[[], bool]) -> None:
        """Let go what is pinned and not wanted, and pin what is missing. May be called again after
        it raised."""
        self._make_room(wanted)
        for group in self._arranged.pinned_groups:
            if not self._is_pinned(group):
                self._pin(group, is_stopped)
                if is_stopped():  # it was perhaps read in part
                    self._let_go(group)
                    raise Cancelled("the model was asked to stop")
        self._stream(wanted.ring_bytes)

    def _make_room(self, wanted: MemoryPlan) -> None:
        """Let go what is pinned and not wanted, and the ring."""
        arranged = self._arrange(self._groups_of(wanted), wanted.pinned)
        self._free_stores(wanted)
        kept = {group.segment.extents for group in arranged.pinned_groups}
        for group in self._arranged.pinned_groups:
            if self._is_pinned(group) and group.segment.extents not in kept:
                self._let_go(group)
        self._use(arranged)

    def _free_stores(self, wanted: MemoryPlan) -> None:
        """Free the ring, so that other memory can be taken."""
        if self.pager is not None:
            self.pager.rearrange((), 0)

    def _stream(self, ring_bytes: int) -> None:
        """Stream what is not pinned through a ring of this size."""
        segments = [group.segment for group in self._arranged.streamed]
        if self.pager is not None:
            self.pager.rearrange(segments, ring_bytes)
        elif segments:
            self.pager = WeightPager(segments, self._reader, ring_bytes, trace=self._trace)

    def close(self) -> None:
        streamed, self.pager = self.pager or self._reader, None
        close_all(streamed.close, self._pinned.close)

    @abstractmethod
    def _groups_of(self, wanted: MemoryPlan) -> Sequence[G]:
        """All segments, cut as wanted."""

    def _arrange(self, groups: Sequence[G], pinned: frozenset[int]) -> Division[G]:
        return Division(groups, pinned)

    def _use(self, arranged: Division[G]) -> None:
        """Take `arranged` as the present division."""
        self._arranged = arranged
        self._find_places()

    @abstractmethod
    def _find_places(self) -> None:
        """Note where weights are used in the present division."""

    def _is_pinned(self, group: G) -> bool:
        return group.segment in self._pinned

    @abstractmethod
    def _pin(self, group: G, stopped: Callable[[], bool]) -> None:
        """Read a segment into memory of its own, and use its weights there."""

    @abstractmethod
    def _let_go(self, group: G) -> None:
        """Free the memory of a pinned segment."""


def one_by_one(
    groups: Iterable[G], is_stopped: Callable[[], bool], doing: str, progress: Progress | None
) -> Iterator[G]:
    """The groups, with progress by their bytes. Raises Cancelled once stopped."""
    groups = list(groups)
    total, done = sum(group.segment.nbytes for group in groups) or 1, 0
    for group in groups:
        if is_stopped():
            raise Cancelled("loading was cancelled")
        yield group
        done += group.segment.nbytes
        if progress:
            progress(doing, done / total)
    if is_stopped():
        raise Cancelled("loading was cancelled")
