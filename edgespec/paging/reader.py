"""Reads byte ranges of a model's files into aligned memory, past the page cache where it can.

Knows files, extents, segments and their layout in memory, but not when or why they are read.
"""

from __future__ import annotations

import ctypes
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
from typing import Protocol

import numpy as np

from edgespec.concurrency.owning import POLL_S, Closeable, close_all
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


_MAP_FIXED = 0x10


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
        nbytes = self.nbytes - start if nbytes is None else nbytes
        if sys.platform == "darwin":  # its madvise leaves pages in the process
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            place = ctypes.c_void_p(self.address + start), ctypes.c_size_t(nbytes)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            libc.mmap(*place, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_longlong(0))
        elif sys.platform != "win32":
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


_WATCHED = ("st_ino", "st_mtime_ns", "st_size")


class WatchedFile(Closeable):
    """An open file, whose size and time of the last change stay while its weights are in use."""

    def __init__(self, path: Path, past_cache: bool = False) -> None:
        """Raises WeightReadError."""
        self.path = path
        try:
            self.descriptor, self.is_direct = _opened(path, past_cache)
        except OSError as error:
            raise WeightReadError(f"cannot open {path}: {error.strerror}") from error
        self._before = os.fstat(self.descriptor)

    def check(self, by_name: bool = False) -> None:
        """Raise WeightReadError if the file was cut short or written to since it was opened, or
        `by_name` another one has its name."""
        before = self._before
        now = self.path.stat() if by_name else os.fstat(self.descriptor)
        if now.st_size < before.st_size:
            raise WeightReadError(
                f"{self.path} was cut short while it was in use: it ends at byte "
                f"{now.st_size:,}, and had {before.st_size:,} bytes; copy or download it again"
            )
        if any(getattr(now, one) != getattr(before, one) for one in _WATCHED):
            raise WeightReadError(
                f"{self.path} was written to while it was in use, so that its weights are not "
                "those that were loaded: load the model again"
            )

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class WatchedFiles(Closeable):
    """Files that are read, or that a library has mapped, in their order."""

    def __init__(self, paths: Sequence[Path], past_cache: bool = False) -> None:
        """Raises WeightReadError if one cannot be opened."""
        self._files: list[WatchedFile] = []
        try:
            for path in paths:
                self._files.append(WatchedFile(path, past_cache))
        except WeightReadError:
            self.close()
            raise

    def __getitem__(self, index: int) -> WatchedFile:
        return self._files[index]

    def check(self) -> None:
        """Raise WeightReadError if one was cut short or written to."""
        for file in self._files:
            file.check()

    def close(self) -> None:
        close_all(*(file.close for file in self._files))


class ReadLimit:
    """Slows reads of all threads down to those of a device that serves one after the other; None:
    it does not."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def begin(self, nbytes: int) -> float:
        """The time at which a read that begins now has ended on such a device."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            begin_s = max(time.perf_counter(), self._free_at)
            self._free_at = begin_s + nbytes / self._bytes_per_s
            return self._free_at


class DirectReader(Closeable):
    """Reads past the page cache where the OS and the file system can, through it elsewhere."""

    def __init__(self, paths: Sequence[Path], limit: ReadLimit | None = None) -> None:
        """Readers with the same `limit` share it. Raises WeightReadError."""
        self._limit = limit or ReadLimit(None)
        self._files = WatchedFiles(paths, past_cache=True)

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        done, file = 0, self._files[run.file_index]
        while done < run.nbytes and not stopped():
            requested = min(READ_BYTES, run.nbytes - done)
            end_s = self._limit.begin(requested)
            with into[done : done + requested] as target:
                n = _read_some(file, run.start + done, target)
            done += n
            while (left_s := end_s - time.perf_counter()) > 0 and not stopped():
                time.sleep(min(left_s, POLL_S))
            if n < requested:
                break
        file.check()
        if done < run.needed and not stopped():
            raise WeightReadError(
                f"{file.path} is cut short at byte "
                f"{os.fstat(file.descriptor).st_size:,}, and weights reach to "
                f"{run.start + run.needed:,}: copy or download it again"
            )
        return done

    def close(self) -> None:
        self._files.close()


def _read_some(file: WatchedFile, offset: int, target: memoryview) -> int:
    """Fill `target` from `offset`; returns the bytes read, fewer only at the file's end."""
    n = 0
    while n < len(target):
        try:
            got = read_at(file.descriptor, target[n:], offset + n)
        except OSError as exc:
            raise WeightReadError(f"reading {file.path} failed: {exc.strerror}") from exc
        n += got
        if got == 0 or n % BLOCK_BYTES:
            break
    if sys.platform == "linux" and n and not file.is_direct:
        os.posix_fadvise(file.descriptor, offset, n, os.POSIX_FADV_DONTNEED)
    return n


_SEEKING = threading.Lock()


def read_at(descriptor: int, into: memoryview, offset: int) -> int:
    """Read at an offset of a file and return the number of bytes. Raises OSError."""
    if sys.platform != "win32":
        return os.preadv(descriptor, [into], offset)
    with _SEEKING, FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        return file.readinto(into) or 0


def _opened(path: Path, past_cache: bool) -> tuple[int, bool]:
    """A descriptor of a file, and True if its reads bypass the page cache. Raises OSError."""
    if sys.platform == "linux" and past_cache:
        with suppress(OSError):  # some file systems refuse direct reads here, others below
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                with mmap.mmap(-1, BLOCK_BYTES) as block:
                    os.preadv(descriptor, [block], 0)
                return descriptor, True
            except OSError:
                os.close(descriptor)
    descriptor = os.open(path, os.O_RDONLY)
    if sys.platform == "darwin" and past_cache:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
    return descriptor, False


def read_segment(
    reader: Reader, segment: Segment, memory: AlignedMemory, stopped: Callable[[], bool]
) -> int:
    """Read a segment into `memory`; returns the bytes read."""
    return sum(
        reader.read(run, memory.view(run.slot_offset, run.nbytes), stopped) for run in segment.runs
    )
