"""Keeps weight segments in memory, or streams them through a ring of slots ahead of their use.

Knows segments, slots and their order, but no runtime.

The ring is one block of memory that is divided into slots in the order of reading, so segments of
different sizes share it without loss. Segments are read in execution order; after the last comes
the first again, so reading for the next pass begins while this one ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import EdgespecError
from edgespec.paging.reader import AlignedMemory, Extent, Reader, Segment, read_segment
from edgespec.tracing.spans import OFF, Trace, Track


@dataclass(slots=True)
class _Slot:
    segment: int
    start: int
    nbytes: int
    ready: bool = False
    ready_at: float = 0.0
    held: bool = False
    dropped: bool = False

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class WeightPager(Closeable):
    """A ring of slots that an I/O thread keeps filled with the next segments.

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
        clock: Callable[[], float] = time.perf_counter,
        trace: Trace = OFF,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._trace = trace
        self._cancelled = False
        self._change = threading.Condition()
        self.bytes_read = 0
        self.stall_s = self.read_s = 0.0
        self.choice_stall_s = self.first_row_stall_s = 0.0
        self._start(segments, ring_bytes)

    @property
    def ring_address(self) -> int:
        """Address of readable memory as large as any segment, valid until `close`.

        A cancelled pass computes on it: its content is arbitrary and the result is discarded.
        """
        return self._ring.address

    def acquire(self, index: int, is_stall: bool = True) -> int | None:
        """Wait for segment `index` and return the address of its slot; None once cancelled.

        Waiting counts as a stall unless `is_stall` is False: a helper thread waits while the
        consumer computes.
        """
        with self._change:
            slot = self._ready_slot(index)
            if slot is None:
                begin = self._clock()
                try:
                    slot = self._wait_for(index)
                finally:
                    if is_stall:
                        self._count_stall(index, begin, self._clock())
                if slot is None:
                    return None
            self._drop_before(slot)
            slot.held = True
            return self._ring.address + slot.start

    def count_wait(self, index: int, begin: float) -> None:
        """Count a stall of the consumer, which has waited since `begin` for its helper thread to
        acquire segment `index`. Time after the segment was read does not count.
        """
        with self._change:
            slot = next((s for s in self._slots if s.held and s.segment == index), None)
            if slot is not None and slot.ready_at > begin:
                self._count_stall(index, begin, slot.ready_at)

    def release(self, index: int) -> None:
        """Let the slot of segment `index` be overwritten."""
        with self._change:
            for slot in self._slots:
                if slot.held and slot.segment == index:
                    slot.held, slot.dropped = False, True
                    break
            self._reclaim()
            self._count_ring()
            self._change.notify_all()

    def now(self) -> float:
        """Seconds on the clock that measures stalls."""
        return self._clock()

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
        largest = max((segment.slot_bytes for segment in segments), default=0)
        if ring_bytes < largest:
            raise EdgespecError(
                f"the ring of {ring_bytes:,} bytes cannot hold a segment of {largest:,} bytes"
            )
        self._segments = tuple(segments)
        self._ring = AlignedMemory(ring_bytes)
        self._slots: deque[_Slot] = deque()
        self._next = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._fill, name="edgespec-pager", daemon=True)
        if segments:
            self._thread.start()

    def _stop(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._slots.clear()

    def _count_stall(self, index: int, begin: float, end: float) -> None:
        self.stall_s += end - begin
        self._trace.add(Track.TARGET, "stall", begin, end, segment=index)

    def _ready_slot(self, index: int) -> _Slot | None:
        for slot in self._slots:
            if slot.segment == index and slot.ready and not slot.dropped:
                return slot
        return None

    def _wait_for(self, index: int) -> _Slot | None:
        if not any(slot.segment == index and not slot.dropped for slot in self._slots):
            self._seek(index)
        while True:
            if self._cancelled or self._closing:
                return None
            slot = self._ready_slot(index)
            if slot is not None:
                return slot
            if self._failure is not None:
                raise self._failure
            if self._is_stuck():
                raise EdgespecError(
                    f"the ring of {self._ring.nbytes:,} bytes is full of held slots"
                )
            self._change.wait()

    def _is_stuck(self) -> bool:
        """True if nothing can be read because every slot is held."""
        room = self._room(self._segments[self._next].slot_bytes)
        return room is None and all(slot.held for slot in self._slots)

    def _seek(self, index: int) -> None:
        """Discard what was read ahead and read from segment `index` on."""
        for slot in self._slots:
            slot.dropped = slot.dropped or not slot.held
        self._next = index
        self._failure = None
        self._reclaim()
        self._change.notify_all()

    def _drop_before(self, acquired: _Slot) -> None:
        """Discard segments that the consumer skipped."""
        skipped = False
        for slot in self._slots:
            if slot is acquired:
                break
            if not slot.held and not slot.dropped:
                slot.dropped = skipped = True
        if skipped:
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
        """Read the next segments as long as there is room; runs in the I/O thread."""
        while True:
            with self._change:
                while True:
                    if self._closing:
                        return
                    segment = self._segments[self._next]
                    start = None if self._failure else self._room(segment.slot_bytes)
                    if start is not None:
                        break
                    self._change.wait()
                slot = _Slot(self._next, start, segment.slot_bytes)
                self._slots.append(slot)
                self._next = (self._next + 1) % len(self._segments)
                self._count_ring()
            self._read_into(slot)

    def _read_into(self, slot: _Slot) -> None:
        segment, n = self._segments[slot.segment], 0
        failure: BaseException | None = None
        begin = self._clock()
        span = self._trace.span(Track.STORAGE, "read")
        try:
            n = read_segment(
                self._reader, segment, self._ring, slot.start, lambda: self._closing or slot.dropped
            )
        except BaseException as exc:  # noqa: BLE001 - it is raised in the consumer's thread
            failure = exc
        span.note(segment=slot.segment, name=segment.name, bytes=n).end()
        with self._change:
            self.bytes_read += n
            slot.ready, slot.ready_at = True, self._clock()
            self.read_s += slot.ready_at - begin
            if failure is not None and not slot.dropped:
                slot.dropped = True
                self._failure = failure
            self._reclaim()
            self._count_ring()
            self._change.notify_all()

    def _count_ring(self) -> None:
        """Trace the bytes of filled slots and of the slot that is being filled."""
        if self._trace.is_on:
            filled = sum(slot.nbytes for slot in self._slots if slot.ready and not slot.dropped)
            reading = sum(slot.nbytes for slot in self._slots if not slot.ready)
            self._trace.count_bytes("ring (MiB)", filled=filled, reading=reading)


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
                n = read_segment(reader, segment, memory, 0, stopped)
                span.note(name=segment.name, bytes=n)
        except BaseException:
            self.drop(segment)
            raise
        self._count()
        return memory.address

    def drop(self, segment: Segment) -> None:
        """Free the memory of a segment."""
        self._memory.pop(segment.extents).close()
        self._count()

    def close(self) -> None:
        memory, self._memory = self._memory, {}
        close_all(*(part.close for part in memory.values()))

    def _count(self) -> None:
        if self._trace.is_on:
            pinned = sum(memory.nbytes for memory in self._memory.values())
            self._trace.count_bytes("pinned (MiB)", pinned=pinned)
