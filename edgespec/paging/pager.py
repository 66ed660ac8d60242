"""Keeps weight segments in memory, or streams them through a ring of slots ahead of their use.

Knows segments, slots and their order, but no runtime.

The ring is one block of memory that is divided into slots in the order of reading, so segments of
different sizes share it without loss. Segments are read in execution order; after the last comes
the first again, so reading for the next pass begins while this one ends. Several threads read
pieces of the same segment, then of the next.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.reader import (
    STAGING_BYTES,
    AlignedMemory,
    Extent,
    NestedRun,
    Reader,
    Run,
    Segment,
    read_segment,
)
from edgespec.paging.store import Store
from edgespec.tracing.spans import OFF, Trace, Track

READERS = 3
"""Threads that read. A thread whose read has ended waits for a core, often for a millisecond beside
threads that compute, or merges lower bits; storage is busy with another's read meanwhile."""


@dataclass(slots=True)
class _Slot:
    segment: int
    start: int
    nbytes: int
    unread: deque[Run | NestedRun]
    """Pieces of the segment that no thread has begun to read."""
    begun_at: float
    n_reading: int = 0
    bytes_read: int = 0
    held: bool = False
    dropped: bool = False

    @property
    def ready(self) -> bool:
        """True if nothing is read into it any more."""
        return not self.unread and not self.n_reading

    def drop(self) -> None:
        """Mark it as no longer wanted; what is being read is awaited, the rest is not read."""
        self.dropped = True
        self.unread.clear()

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class WeightPager(Store):
    """A ring of slots that I/O threads keep filled with the next segments.

    One consumer acquires and releases segments; a helper thread may acquire the next one while the
    consumer computes. A slot's address is valid from `acquire` to `release`. Acquiring out of order
    is allowed and discards what was read ahead. A failed read raises WeightReadError in `acquire`;
    the next `acquire` tries again.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        reader: Reader,
        ring_bytes: int,
        trace: Trace = OFF,
    ) -> None:
        self._reader = reader
        self._trace = trace
        self._cancelled = False
        self._change = threading.Condition()
        self._n_reading = 0
        self._counted_at = self._traced_until = 0.0
        """Moments up to which `read_s` counts, and to which spans of reads reach."""
        self.merge_s = 0.0
        self._start(segments, ring_bytes)

    @property
    def ring_address(self) -> int:
        """Address of readable memory as large as any segment, valid until `close`.

        A cancelled pass computes on it: its content is arbitrary and the result is discarded.
        """
        return self._ring.address

    def acquire(self, index: int) -> int | None:
        """Wait for segment `index` and return the address of its slot; None once cancelled."""
        with self._change:
            self._aim(index)
            slot = self._ready_slot(index)
            if slot is None:
                begin = time.perf_counter()
                try:
                    slot = self._wait_for(index)
                finally:
                    end = time.perf_counter()
                    self.stall_s += end - begin
                    self._trace.add(Track.TARGET, "stall", begin, end, segment=index)
                if slot is None:
                    return None
            slot.held = True
            return self._ring.address + slot.start

    def release(self, index: int) -> None:
        """Let the slot of segment `index` be overwritten."""
        with self._change:
            for slot in self._slots:
                if slot.held and slot.segment == index:
                    slot.held = False
                    slot.drop()
            self._reclaim()
            self._change.notify_all()

    def cancel(self) -> None:
        """Wake a waiting `acquire`, which returns None; lasts until `resume`."""
        with self._change:
            self._cancelled = True
            self._change.notify_all()

    def resume(self) -> None:
        with self._change:
            self._cancelled = False

    def rearrange(self, segments: Sequence[Segment], ring_bytes: int) -> None:
        """Stream other segments through another ring from now on; nothing may be acquired.

        The memory of the former ring is freed first. Without segments there is no ring.
        """
        self._stop()
        self._ring.close()
        self._start(segments, ring_bytes)

    def close(self) -> None:
        self._stop()
        close_all(self._reader.close, self._ring.close)

    def _start(self, segments: Sequence[Segment], ring_bytes: int) -> None:
        self._segments = tuple(segments)
        self._ring = AlignedMemory(ring_bytes)
        self._slots: deque[_Slot] = deque()
        self._next = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._threads = [
            threading.Thread(target=self._fill, name=f"edgespec-pager-{i}", daemon=True)
            for i in range(READERS if segments else 0)
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        self._slots.clear()

    def _ready_slot(self, index: int) -> _Slot | None:
        coming = (slot for slot in self._slots if slot.segment == index and not slot.dropped)
        return next((slot for slot in coming if slot.ready), None)

    def _wait_for(self, index: int) -> _Slot | None:
        while not self._cancelled and not self._closing:
            if (slot := self._ready_slot(index)) is not None:
                return slot
            if self._failure is not None and not self._is_coming(index):
                raise self._failure
            self._change.wait()
        return None

    def _is_coming(self, index: int) -> bool:
        return any(slot.segment == index and not slot.dropped for slot in self._slots)

    def _aim(self, index: int) -> None:
        """Discard what was read ahead of segment `index`, and read from it on if it is not
        coming."""
        before = takewhile(lambda slot: slot.segment != index or slot.dropped, self._slots)
        skipped = [slot for slot in before if not slot.held and not slot.dropped]
        for slot in skipped:
            slot.drop()
        if is_new := not self._is_coming(index):
            self._next, self._failure = index, None
        if skipped or is_new:
            self._reclaim()
            self._change.notify_all()

    def _reclaim(self) -> None:
        while self._slots and self._slots[0].dropped and self._slots[0].ready:
            self._slots.popleft()

    def _room(self, nbytes: int) -> int | None:
        """Offset in the ring of the next slot of `nbytes`; None if there is no room."""
        if not self._slots:
            return 0
        head, tail = self._slots[-1].end, self._slots[0].start
        if self._slots[-1].start >= tail:
            if head + nbytes <= self._ring.nbytes:
                return head
            return 0 if nbytes <= tail else None
        return head if head + nbytes <= tail else None

    def _fill(self) -> None:
        """Read pieces of the next segments as long as there is room; runs in the I/O threads."""
        staging = AlignedMemory(STAGING_BYTES, sparse=True)
        try:
            while (piece := self._next_piece()) is not None:
                self._read(*piece, staging)
        finally:
            staging.close()

    def _next_piece(self) -> tuple[_Slot, Run | NestedRun] | None:
        """A slot and what to read into it, as soon as there is room; None once closing."""
        with self._change:
            while not self._closing:
                slot = self._slots[-1] if self._slots else None
                if slot is None or not slot.unread:
                    slot = self._add_slot()
                if slot is not None:
                    self._count_reading(1)
                    slot.n_reading += 1
                    return slot, slot.unread.popleft()
                self._change.wait()
        return None

    def _add_slot(self) -> _Slot | None:
        """A slot for the next segment; None if there is no room, or a read has failed."""
        segment = self._segments[self._next]
        start = None if self._failure else self._room(segment.slot_bytes)
        if start is None:
            return None
        pieces = deque(segment.pieces)
        slot = _Slot(self._next, start, segment.slot_bytes, pieces, time.perf_counter())
        self._slots.append(slot)
        self._next = (self._next + 1) % len(self._segments)
        return slot

    def _read(self, slot: _Slot, piece: Run | NestedRun, staging: AlignedMemory) -> None:
        n = 0
        failure: BaseException | None = None
        merged_s = 0.0
        try:
            into = self._ring.view(slot.start + piece.slot_offset, piece.nbytes)
            if isinstance(piece, Run):
                n = self._reader.read(piece, into, lambda: self._is_unwanted(slot))
            else:
                run = piece.lower
                lower = staging.view(0, run.nbytes)
                n = self._reader.read(run, lower, lambda: self._is_unwanted(slot))
                if not self._is_unwanted(slot):
                    began = time.perf_counter()
                    piece.merge(lower[run.slot_offset :][: piece.lower_bytes], into)
                    merged_s = time.perf_counter() - began
        except BaseException as exc:  # noqa: BLE001 - it is raised in the consumer's thread
            failure = exc
        with self._change:
            self.bytes_read += n
            self.merge_s += merged_s
            slot.bytes_read += n
            slot.n_reading -= 1
            if failure is not None and not slot.dropped:
                slot.drop()
                self._failure = failure
            self._count_reading(-1)
            if slot.ready:
                self._end_reading(slot)

    def _is_unwanted(self, slot: _Slot) -> bool:
        return self._closing or slot.dropped

    def _count_reading(self, change: int) -> None:
        """Count the seconds since the last call if a piece was being read."""
        now = time.perf_counter()
        if self._n_reading:
            self.read_s += now - self._counted_at
        self._counted_at = now
        self._n_reading += change

    def _end_reading(self, slot: _Slot) -> None:
        name, begin = self._segments[slot.segment].name, max(slot.begun_at, self._traced_until)
        self._traced_until = self._counted_at
        self._trace.add(
            Track.STORAGE,
            "read",
            begin,
            self._counted_at,
            segment=slot.segment,
            name=name,
            bytes=slot.bytes_read,
        )
        self._reclaim()
        self._change.notify_all()


class PinnedSegments(Closeable):
    """Segments that stay in memory until they are dropped, or until `close`."""

    def __init__(self, trace: Trace = OFF) -> None:
        self._memory: dict[tuple[Extent, ...], AlignedMemory] = {}
        self._trace = trace

    def __contains__(self, segment: Segment) -> bool:
        return segment.extents in self._memory

    def load(self, segment: Segment, reader: Reader, stopped: Callable[[], bool]) -> int:
        """Read a segment into memory of its own and return the address."""
        memory = AlignedMemory(segment.slot_bytes)
        self._memory[segment.extents] = memory
        try:
            with self._trace.span(Track.STORAGE, "read pinned") as span:
                n = read_segment(reader, segment, memory, stopped)
                span.note(name=segment.name, bytes=n)
        except BaseException:
            self.drop(segment)
            raise
        return memory.address

    def drop(self, segment: Segment) -> None:
        """Free the memory of a segment."""
        self._memory.pop(segment.extents).close()

    def close(self) -> None:
        memory, self._memory = self._memory, {}
        close_all(*(part.close for part in memory.values()))
