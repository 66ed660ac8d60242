"""Reads a model and its copy on a second disk in parallel.

Each read is split in proportion to the measured speeds of the disks; a small one goes to the disk
that finishes it first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import ModelError
from edgespec.files.sampled import sampled_digest
from edgespec.paging.reader import DirectReader, Reader, Run, block_floor

MIN_PART_BYTES = 128 << 10
"""Splitting into smaller parts costs more per request than the second disk saves."""
MAX_AT_ONCE = 4
NEW_SHARE = 0.2
"""Weight of the latest read in the speed of a disk."""


def open_reader(paths: Sequence[Path], mirror: Sequence[Path] = ()) -> Reader:
    """A reader of a model's files and, if there is one, of its copy. Raises WeightReadError."""
    reader = DirectReader(paths)
    if not mirror:
        return reader
    try:
        return MirroredReader(reader, DirectReader(mirror))
    except BaseException:
        reader.close()
        raise


def find_mirror(paths: Sequence[Path], mirror: Path) -> list[Path]:
    """The files of the copy at `mirror`: a file, or the folder that holds those of the same names.

    Raises ModelError for a file that is missing or is no copy of the model's.
    """
    if mirror.is_dir():
        copies = [mirror / path.name for path in paths]
    elif len(paths) == 1:
        copies = [mirror]
    else:
        raise ModelError(f"{paths[0].name} has {len(paths)} parts: name the folder of their copies")
    for path, copy in zip(paths, copies, strict=True):
        try:
            is_copy = sampled_digest([path], False) == sampled_digest([copy], False)
        except OSError as error:
            raise ModelError(f"the copy {copy} cannot be read: {error.strerror}") from error
        if not is_copy:
            raise ModelError(f"{copy} is no copy of {path}: copy it again")
    return copies


class MirroredReader(Closeable):
    """Reads a part of each run from the first reader and the rest from the second, in parallel.

    Safe for several threads: experts are read by many at once.
    """

    def __init__(
        self, first: Reader, second: Reader, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._readers = (first, second)
        self._clock = clock
        self._bytes_per_s = [0.0, 0.0]
        self._pending_bytes = [0, 0]
        """Bytes requested from each reader and not read yet."""
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="edgespec-mirror")

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        with self._lock:
            first_bytes = self._first_part(run.nbytes)
            before = list(self._pending_bytes)
            self._pending_bytes[0] += first_bytes
            self._pending_bytes[1] += run.nbytes - first_bytes
        if first_bytes in (0, run.nbytes):
            which = int(first_bytes == 0)
            return self._read(which, run, into, stopped, before[which])
        with into[:first_bytes] as beginning, into[first_bytes:] as end:
            second = _part(run, first_bytes, run.nbytes)
            reading = self._threads.submit(self._read, 1, second, end, stopped, before[1])
            try:
                first = _part(run, 0, first_bytes)
                n = self._read(0, first, beginning, stopped, before[0])
            finally:
                reading.exception()  # wait: the thread writes into `end` until then
            return n + reading.result()

    def _first_part(self, nbytes: int) -> int:
        """Bytes of a run that the first reader reads, so that both finish together."""
        speeds = self._bytes_per_s if all(self._bytes_per_s) else [1.0, 1.0]
        first, second = self._pending_bytes
        share = speeds[0] / sum(speeds)
        part = block_floor(int(share * (first + second + nbytes)) - first)
        if min(part, nbytes - part) < MIN_PART_BYTES:
            return nbytes if 2 * part >= nbytes else 0
        return part

    def _read(
        self,
        which: int,
        run: Run,
        into: memoryview,
        stopped: Callable[[], bool],
        before_bytes: int,
    ) -> int:
        """Read a run behind `before_bytes` that the reader has pending, and update its speed."""
        begun = self._clock()
        n = 0
        try:
            n = self._readers[which].read(run, into, stopped)
        finally:
            seconds = self._clock() - begun
            with self._lock:
                self._pending_bytes[which] -= run.nbytes
                if n >= MIN_PART_BYTES and seconds > 0:
                    speed = (before_bytes + n) / seconds
                    known = self._bytes_per_s[which] or speed
                    self._bytes_per_s[which] = known + NEW_SHARE * (speed - known)
        return n

    def close(self) -> None:
        """Ends the threads and closes both readers."""
        close_all(self._threads.shutdown, *(reader.close for reader in self._readers))


def _part(run: Run, begin: int, end: int) -> Run:
    """The bytes from `begin` to `end` of a run; both are multiples of BLOCK_BYTES."""
    return Run(
        run.file_index, run.start + begin, end - begin, max(0, min(run.needed, end) - begin), 0
    )
