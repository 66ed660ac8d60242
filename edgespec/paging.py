"""Streams weight segments from storage through a ring of slots, in a cycle, ahead of their use.

Knows files, extents, segments and slots, and nothing of any runtime: what a slot's bytes mean is
the business of whoever acquires it.

The ring is one block of memory from which slots are cut in the order of reading, so segments of
different sizes share it without loss. Segments are read in execution order; after the last comes
the first again, so reading for the next pass begins while this one ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from edgespec.errors import EdgespecError, WeightReadError
from edgespec.values import PagingStats

BLOCK_BYTES = 4096
"""Direct reads need offset, length and memory aligned to the device's block; 4096 suits all."""
READ_BYTES = 4 << 20
"""Bytes asked for at once: large enough for full bandwidth, small enough to stop soon."""


def block_floor(n: int) -> int:
    return n - n % BLOCK_BYTES


def block_ceil(n: int) -> int:
    return block_floor(n + BLOCK_BYTES - 1)


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of one of the model's files."""

    file_index: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring extents read as one, widened to whole blocks, and where they land in a slot."""

    file_index: int
    start: int
    nbytes: int
    needed: int
    """Bytes that must arrive; the rest of the last block may lie past the end of the file."""
    slot_offset: int


class Segment:
    """The unit of paging: the extents that one slot holds, and their layout in it."""

    def __init__(self, name: str, extents: Sequence[Extent]) -> None:
        self.name = name
        self.extents = tuple(sorted(extents, key=lambda e: (e.file_index, e.offset)))
        self.nbytes = sum(extent.nbytes for extent in self.extents)
        self.runs = _runs(self.extents)
        last = self.runs[-1]
        self.slot_bytes = last.slot_offset + last.nbytes

    def locate(self, file_index: int, offset: int) -> int:
        """Where in the slot the byte at `offset` of a file lies. KeyError if it does not."""
        for run in self.runs:
            if run.file_index == file_index and 0 <= offset - run.start < run.nbytes:
                return run.slot_offset + offset - run.start
        raise KeyError((file_index, offset))


def _runs(extents: Sequence[Extent]) -> tuple[Run, ...]:
    spans: list[list[int]] = []
    for extent in extents:
        start, end = block_floor(extent.offset), extent.offset + extent.nbytes
        if spans and spans[-1][0] == extent.file_index and start <= block_ceil(spans[-1][2]):
            spans[-1][2] = max(spans[-1][2], end)
        else:
            spans.append([extent.file_index, start, end])
    runs, slot_offset = [], 0
    for file_index, start, end in spans:
        nbytes = block_ceil(end) - start
        runs.append(Run(file_index, start, nbytes, end - start, slot_offset))
        slot_offset += nbytes
    return tuple(runs)


class Memory:
    """Private, block-aligned memory that is resident only where it was written.

    `sparse` memory is written in small pieces far apart: no huge page may stand in for one of them.
    """

    def __init__(self, nbytes: int, sparse: bool = False) -> None:
        self.nbytes = block_ceil(max(nbytes, 1))
        if hasattr(mmap, "MAP_PRIVATE"):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self._map = mmap.mmap(-1, self.nbytes, flags=flags)
        else:
            self._map = mmap.mmap(-1, self.nbytes)
        if sparse and hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages knows no such advice
                self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def view(self, start: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[start : start + nbytes]

    def forget(self) -> None:
        """Give the pages back; what was written is lost, the address range stays."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        if not self._map.closed:
            self._map.close()


class Reader(Protocol):
    """Fills memory with a run's bytes. The seam at which tests put slow or failing storage."""

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        """Read `run` and return the bytes that storage delivered. Raises WeightReadError."""

    def close(self) -> None: ...


class DirectReader:
    """Reads past the page cache where the OS and the file system can, plainly where not."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._files: list[int] = []
        self._direct: list[bool] = []
        try:
            for path in self._paths:
                descriptor, direct = _open_direct(path)
                self._files.append(descriptor)
                self._direct.append(direct)
        except OSError as exc:
            self.close()
            raise WeightReadError(
                f"cannot open {exc.filename} for reading: {exc.strerror}"
            ) from exc

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        done = 0
        while done < run.nbytes and not stopped():
            wanted = min(READ_BYTES, run.nbytes - done)
            with into[done : done + wanted] as target:
                n = self._read_some(run, run.start + done, target)
            done += n
            if n < wanted:
                break
        if done < run.needed and not stopped():
            path = self._paths[run.file_index]
            raise WeightReadError(
                f"{path} was cut short while it was streamed: it ends at byte "
                f"{run.start + done:,}, weights reach to {run.start + run.needed:,}; "
                "copy or download it again"
            )
        return done

    def _read_some(self, run: Run, offset: int, target: memoryview) -> int:
        """One read; short only at the end of the file."""
        descriptor = self._files[run.file_index]
        n = 0
        while n < len(target):
            try:
                got = os.preadv(descriptor, [target[n:]], offset + n)
            except OSError as exc:
                if exc.errno == errno.EINVAL and self._direct[run.file_index]:
                    descriptor = self._reopen_plain(run.file_index)
                    continue
                path = self._paths[run.file_index]
                raise WeightReadError(f"reading {path} failed: {exc.strerror}") from exc
            n += got
            if got == 0 or n % BLOCK_BYTES:
                break
        if n and not self._direct[run.file_index] and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, n, os.POSIX_FADV_DONTNEED)
        return n

    def _reopen_plain(self, file_index: int) -> int:
        plain = os.open(self._paths[file_index], os.O_RDONLY)
        os.close(self._files[file_index])
        self._files[file_index], self._direct[file_index] = plain, False
        return plain

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _open_direct(path: Path) -> tuple[int, bool]:
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
    descriptor = os.open(path, os.O_RDONLY)
    try:
        import fcntl

        if hasattr(fcntl, "F_NOCACHE"):
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
            return descriptor, True
    except (ImportError, OSError):
        pass
    return descriptor, False


def read_segment(
    reader: Reader, segment: Segment, memory: Memory, start: int, stopped: Callable[[], bool]
) -> int:
    """Fill the slot at `start` of `memory` with a segment; returns the bytes read."""
    n = 0
    for run in segment.runs:
        with memory.view(start + run.slot_offset, run.nbytes) as view:
            n += reader.read(run, view, stopped)
    return n


@dataclass(slots=True)
class _Slot:
    segment: int
    start: int
    nbytes: int
    ready: bool = False
    held: bool = False
    dropped: bool = False

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class WeightPager:
    """A ring of slots that an I/O thread keeps filled with the segments that come next.

    `acquire` and `release` belong to one consumer thread. A slot's address is valid from `acquire`
    to `release`. Acquiring out of order is allowed and costs the reads already made. A failed read
    raises WeightReadError in `acquire`; the next `acquire` tries again.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        reader: Reader,
        ring_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        largest = max(segment.slot_bytes for segment in segments)
        if ring_bytes < largest:
            raise EdgespecError(
                f"the ring of {ring_bytes:,} bytes cannot hold a segment of {largest:,} bytes"
            )
        self._segments = tuple(segments)
        self._reader = reader
        self._clock = clock
        self._ring = Memory(ring_bytes)
        self._slots: deque[_Slot] = deque()
        self._next = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._cancelled = False
        self._change = threading.Condition()
        self.bytes_read = 0
        self.stall_s = 0.0
        self._thread = threading.Thread(target=self._fill, name="edgespec-pager", daemon=True)
        self._thread.start()

    def acquire(self, index: int) -> int | None:
        """Address of the slot that holds segment `index`; waits for it. None once cancelled."""
        with self._change:
            slot = self._ready_slot(index)
            if slot is None:
                begin = self._clock()
                try:
                    slot = self._wait_for(index)
                finally:
                    self.stall_s += self._clock() - begin
                if slot is None:
                    return None
            self._drop_before(slot)
            slot.held = True
            return self._ring.address + slot.start

    def release(self, index: int) -> None:
        """The slot of segment `index` may be overwritten."""
        with self._change:
            for slot in self._slots:
                if slot.held and slot.segment == index:
                    slot.held, slot.dropped = False, True
                    break
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

    def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        self._reader.close()
        self._slots.clear()
        self._ring.close()

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
        """Nothing is being read, and nothing can be, because every slot is held."""
        room = self._room(self._segments[self._next].slot_bytes)
        return room is None and all(slot.held for slot in self._slots)

    def _seek(self, index: int) -> None:
        """Forget what was read ahead and read from `index` on."""
        for slot in self._slots:
            slot.dropped = slot.dropped or not slot.held
        self._next = index
        self._failure = None
        self._reclaim()
        self._change.notify_all()

    def _drop_before(self, wanted: _Slot) -> None:
        """Segments that were skipped make room: the consumer did not want them this time."""
        skipped = False
        for slot in self._slots:
            if slot is wanted:
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
        """Where in the ring the next slot may begin."""
        if not self._slots:
            return 0
        head, tail = self._slots[-1].end, self._slots[0].start
        if self._slots[-1].start >= tail:
            if head + nbytes <= self._ring.nbytes:
                return head
            return 0 if nbytes <= tail else None
        return head if head + nbytes <= tail else None

    def _fill(self) -> None:
        """The I/O thread: read what comes next as long as there is room."""
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
            self._read_into(slot)

    def _read_into(self, slot: _Slot) -> None:
        segment, n = self._segments[slot.segment], 0
        failure: BaseException | None = None
        try:
            n = read_segment(
                self._reader, segment, self._ring, slot.start, lambda: self._closing or slot.dropped
            )
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the consumer must hear of it
            failure = exc
        with self._change:
            self.bytes_read += n
            slot.ready = True
            if failure is not None and not slot.dropped:
                slot.dropped = True
                self._failure = failure
            self._reclaim()
            self._change.notify_all()


class PinnedSegments:
    """Segments that stay in memory from loading to `close`."""

    def __init__(self) -> None:
        self._memory: list[Memory] = []
        self.nbytes = 0

    def load(self, segment: Segment, reader: Reader, stopped: Callable[[], bool]) -> int:
        """Read a segment into memory of its own and return the address."""
        memory = Memory(segment.slot_bytes)
        self._memory.append(memory)
        read_segment(reader, segment, memory, 0, stopped)
        self.nbytes += segment.nbytes
        return memory.address

    def close(self) -> None:
        while self._memory:
            self._memory.pop().close()


def paging_stats(
    segments: Sequence[Segment], pinned_bytes: int, pager: WeightPager | None, passes: int
) -> PagingStats:
    """The figures that a paged model reports."""
    total = sum(segment.nbytes for segment in segments)
    return PagingStats(
        segments=len(segments),
        pinned_bytes=pinned_bytes,
        streamed_bytes=total - pinned_bytes,
        bytes_read=pager.bytes_read if pager else 0,
        stall_s=pager.stall_s if pager else 0.0,
        passes=passes,
    )
