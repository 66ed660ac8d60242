"""Reads byte ranges of a model's files into aligned memory, past the page cache where it can.

Knows files, extents, segments and their layout in memory, but not when or why they are read.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from edgespec.concurrency.owning import POLL_S, Closeable
from edgespec.errors import WeightReadError

BLOCK_BYTES = max(4096, mmap.PAGESIZE)
"""Alignment of offset, length and address of direct reads; 4096 suits all devices. Memory is freed
in pages, which are larger on some ARM systems."""
READ_BYTES = 4 << 20
"""Bytes of one read: large enough for full bandwidth, small enough to cancel quickly."""


MERGED_BYTES = 2 << 20
"""Bytes that the lower bits of one read are merged to, about."""
STAGING_BYTES = MERGED_BYTES + 2 * BLOCK_BYTES
"""Memory in which a thread has them before; they are never more than what they are merged to."""


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
    """Adjacent extents that are read together, widened to whole blocks, and their slot offset."""

    file_index: int
    start: int
    nbytes: int
    needed: int
    """Bytes that must be read; the rest of the last block may lie past the end of the file."""
    slot_offset: int

    def pieces(self) -> Iterator[Run]:
        """The run, cut into reads of at most READ_BYTES."""
        for at in range(0, self.nbytes, READ_BYTES):
            nbytes, needed = min(READ_BYTES, self.nbytes - at), min(READ_BYTES, self.needed - at)
            yield Run(self.file_index, self.start + at, nbytes, needed, self.slot_offset + at)


@dataclass(frozen=True, slots=True)
class NestedRun:
    """A part of a slot of which only the lower bits are read."""

    lower: Run
    """The read that has them after the first `slot_offset` bytes."""
    lower_bytes: int
    slot_offset: int
    nbytes: int
    """Bytes of the slot that they are merged to."""
    merge: Callable[[memoryview, memoryview], None]
    """Writes to the second memory the bytes of the model's file of which the first has the lower
    bits."""


class Segment:
    """The unit of paging: the extents that one slot holds, and their layout in it."""

    def __init__(
        self, name: str, extents: Sequence[Extent], nested: Sequence[Run | NestedRun] = ()
    ) -> None:
        """`nested` are all parts of its slot, if some need not be read whole to stream it."""
        self.name = name
        self.extents = tuple(sorted(extents, key=lambda e: (e.file_index, e.offset)))
        self.nbytes = sum(extent.nbytes for extent in self.extents)
        self.runs = _runs(self.extents)
        last = self.runs[-1]
        self.slot_bytes = last.slot_offset + last.nbytes
        self.pieces: Sequence[Run | NestedRun] = nested or tuple(
            piece for run in self.runs for piece in run.pieces()
        )
        """Reads to stream it, of at most READ_BYTES."""

    @property
    def read_bytes(self) -> int:
        """Bytes read to stream it."""
        reads = (one.lower if isinstance(one, NestedRun) else one for one in self.pieces)
        return sum(run.nbytes for run in reads)

    def locate(self, file_index: int, offset: int) -> int:
        """Slot offset of the byte at `offset` of a file. Raises KeyError if no run contains it."""
        for run in self.runs:
            if run.file_index == file_index and 0 <= offset - run.start < run.nbytes:
                return run.slot_offset + offset - run.start
        raise KeyError((file_index, offset))


def _runs(extents: Sequence[Extent]) -> tuple[Run, ...]:
    spans: list[tuple[int, int, int]] = []
    """File, start and end of each run."""
    for extent in extents:
        start, end = block_floor(extent.offset), extent.offset + extent.nbytes
        if spans and spans[-1][0] == extent.file_index and start <= block_ceil(spans[-1][2]):
            spans[-1] = *spans[-1][:2], max(spans[-1][2], end)
        else:
            spans.append((extent.file_index, start, end))
    runs, slot_offset = [], 0
    for file_index, start, end in spans:
        nbytes = block_ceil(end) - start
        runs.append(Run(file_index, start, nbytes, end - start, slot_offset))
        slot_offset += nbytes
    return tuple(runs)


class AlignedMemory(Closeable):
    """Private, block-aligned memory that becomes resident where it is written.

    It uses huge pages where the kernel has them, because direct reads into them cost less. `sparse`
    memory, which is written in small pieces far apart, uses none.
    """

    def __init__(self, nbytes: int, sparse: bool = False) -> None:
        self.nbytes = block_ceil(max(nbytes, 1))
        if sys.platform != "win32":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self._map = mmap.mmap(-1, self.nbytes, flags=flags)
        else:
            self._map = mmap.mmap(-1, self.nbytes)
        if sys.platform == "linux":
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_NOHUGEPAGE if sparse else mmap.MADV_HUGEPAGE)
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def view(self, start: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[start : start + nbytes]

    def forget(self, start: int = 0, nbytes: int | None = None) -> None:
        """Free all pages, or those of a range of whole blocks; the address range stays mapped."""
        if sys.platform != "win32":
            nbytes = self.nbytes - start if nbytes is None else nbytes
            self._map.madvise(mmap.MADV_DONTNEED, start, nbytes)

    def close(self) -> None:
        """Free the pages and the address range.

        A view that still exists, for example in the traceback of a failed read, keeps the address
        range mapped; its content must not be used.
        """
        try:
            self._map.close()
        except BufferError:
            self.forget()


class Reader(Protocol):
    """Fills memory with a run's bytes. Tests implement slow and failing storage."""

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        """Read `run` and return the number of bytes read. Raises WeightReadError."""

    def close(self) -> None: ...


class FileWatch:
    """Size and time of the last change of an open file, which stay while its weights are in use."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._before = os.fstat(descriptor)

    def check(self, descriptor: int) -> None:
        """Raise WeightReadError if the file was cut short or written to since it was opened."""
        before, now = self._before, os.fstat(descriptor)
        if now.st_size < before.st_size:
            raise WeightReadError(
                f"{self._path} was cut short while it was in use: it ends at byte "
                f"{now.st_size:,}, and had {before.st_size:,} bytes; copy or download it again"
            )
        if (now.st_mtime_ns, now.st_size) != (before.st_mtime_ns, before.st_size):
            raise WeightReadError(
                f"{self._path} was written to while it was in use, so that its weights are not "
                "those that were loaded: load the model again"
            )


class WatchedFiles(Closeable):
    """Files that a library has mapped, which stay as they were when they were opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises WeightReadError if one cannot be opened."""
        self._watches: list[tuple[int, FileWatch]] = []
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError as error:
                self.close()
                raise WeightReadError(f"cannot open {path}: {error.strerror}") from error
            self._watches.append((descriptor, FileWatch(path, descriptor)))

    def check(self) -> None:
        """Raise WeightReadError if one was cut short or written to."""
        for descriptor, watch in self._watches:
            watch.check(descriptor)

    def close(self) -> None:
        while self._watches:
            os.close(self._watches.pop()[0])


class ReadLimit:
    """Slows reads of all threads down to those of a device that serves one after the other."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, bytes_per_s: float | None) -> Self | None:
        """The limit of this rate; None without one."""
        return None if bytes_per_s is None else cls(bytes_per_s)

    def begin(self, nbytes: int) -> float:
        """The time at which a read that begins now has ended on such a device."""
        with self._lock:
            begin_s = max(time.perf_counter(), self._free_at)
            self._free_at = begin_s + nbytes / self._bytes_per_s
            return self._free_at


class DirectReader(Closeable):
    """Reads past the page cache where the OS and the file system can, through it elsewhere."""

    def __init__(self, paths: Sequence[Path], limit: ReadLimit | None = None) -> None:
        """Readers with the same `limit` share it."""
        self._limit = limit
        self._paths = tuple(paths)
        self._files: list[int] = []
        self._direct: list[bool] = []
        self._watches: list[FileWatch] = []
        self._replaced: list[int] = []
        """Descriptors that other threads may still be reading from."""
        self._reopening = threading.Lock()
        try:
            for path in self._paths:
                descriptor, direct = _open_direct(path)
                self._files.append(descriptor)
                self._direct.append(direct)
                self._watches.append(FileWatch(path, descriptor))
        except OSError as exc:
            self.close()
            raise WeightReadError(
                f"cannot open {exc.filename} for reading: {exc.strerror}"
            ) from exc

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        done = 0
        while done < run.nbytes and not stopped():
            requested = min(READ_BYTES, run.nbytes - done)
            end_s = self._limit.begin(requested) if self._limit else 0.0
            with into[done : done + requested] as target:
                n = self._read_some(run, run.start + done, target)
            done += n
            while (left_s := end_s - time.perf_counter()) > 0 and not stopped():
                time.sleep(min(left_s, POLL_S))
            if n < requested:
                break
        descriptor = self._files[run.file_index]
        self._watches[run.file_index].check(descriptor)
        if done < run.needed and not stopped():
            raise WeightReadError(
                f"{self._paths[run.file_index]} is cut short at byte "
                f"{os.fstat(descriptor).st_size:,}, and weights reach to "
                f"{run.start + run.needed:,}: copy or download it again"
            )
        return done

    def _read_some(self, run: Run, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; returns the bytes read, fewer only at the file's end."""
        descriptor = self._files[run.file_index]
        n = 0
        while n < len(target):
            try:
                got = read_at(descriptor, target[n:], offset + n)
            except OSError as exc:
                if exc.errno == errno.EINVAL:
                    plain = self._reopen_plain(run.file_index)
                    if plain != descriptor:
                        descriptor = plain
                        continue
                path = self._paths[run.file_index]
                raise WeightReadError(f"reading {path} failed: {exc.strerror}") from exc
            n += got
            if got == 0 or n % BLOCK_BYTES:
                break
        if sys.platform == "linux" and n and not self._direct[run.file_index]:
            os.posix_fadvise(descriptor, offset, n, os.POSIX_FADV_DONTNEED)
        return n

    def _reopen_plain(self, file_index: int) -> int:
        """The descriptor of the file without direct reads."""
        with self._reopening:
            if self._direct[file_index]:
                plain = os.open(self._paths[file_index], os.O_RDONLY)
                self._replaced.append(self._files[file_index])
                self._files[file_index], self._direct[file_index] = plain, False
            return self._files[file_index]

    def close(self) -> None:
        for descriptors in (self._files, self._replaced):
            while descriptors:
                os.close(descriptors.pop())


_SEEKING = threading.Lock()


def read_at(descriptor: int, into: memoryview, offset: int) -> int:
    """Read at an offset of a file and return the number of bytes. Raises OSError."""
    if sys.platform != "win32":
        return os.preadv(descriptor, [into], offset)
    with _SEEKING, FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        return file.readinto(into) or 0


def _open_direct(path: Path) -> tuple[int, bool]:
    if sys.platform == "linux":
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
    descriptor = os.open(path, os.O_RDONLY)
    if sys.platform != "win32":
        import fcntl

        if hasattr(fcntl, "F_NOCACHE"):
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
                return descriptor, True
    return descriptor, False


def read_segment(
    reader: Reader, segment: Segment, memory: AlignedMemory, start: int, stopped: Callable[[], bool]
) -> int:
    """Read a segment into the slot at `start` of `memory`; returns the bytes read."""
    return sum(
        reader.read(run, memory.view(start + run.slot_offset, run.nbytes), stopped)
        for run in segment.runs
    )
