"""Reads slices of experts in threads of its own, in the order in which they were asked for.

Every stacked matrix has an address range with a place for each expert, and memory behind it only
where an expert was read. Knows neither why a slice is wanted nor what makes room for it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.reader import AlignedMemory, Reader
from edgespec.paging.store import Reads
from edgespec.tracing.spans import NO_SPAN, Span, Trace, Track

READERS = 4
"""Threads that read: slices are small, and one queue leaves a fast disk idle."""


@dataclass(slots=True)
class Entry:
    """An expert that is in memory or being read, or a single slice of one."""

    matrices: Sequence[int]
    """Indices of the matrices whose slices it has."""
    unread: set[int]
    """Those that have not been read yet."""
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SliceRead:
    """A slice that is waiting to be read."""

    layer: int
    expert: int
    matrix: int
    entry: Entry


class SliceReads(Closeable):
    """A queue of slices and the threads that read them into `ranges`.

    `lock` guards the queue and the entries; methods are called while it is held, `close` is not.
    """

    def __init__(
        self,
        layers: Sequence[ExpertLayer],
        reader: Reader,
        counts: Reads,
        trace: Trace,
    ) -> None:
        """`counts` has the bytes that were read."""
        self.lock = threading.Lock()
        self.arrival = threading.Condition(self.lock)
        """Signals that all slices of a matrix that were asked for were read, that one has failed,
        and that waiting must end."""
        self.is_closing = False
        self._work = threading.Condition(self.lock)
        """Signals that there is something to read."""
        self._layers = layers
        self.ranges = [
            [AlignedMemory(matrix.range_bytes, sparse=True) for matrix in layer.matrices]
            for layer in layers
        ]
        """Memory of each matrix of each layer, readable until `close`, whatever it holds."""
        self._reader = reader
        self._counts = counts
        self._trace = trace
        self._queue: deque[SliceRead] = deque()
        self._pending: Counter[tuple[int, int]] = Counter()
        """Slices that are waiting or being read, by layer and matrix."""
        self._n_reading = self._busy_bytes = 0
        self._busy: Span = NO_SPAN
        """Span from the first of several simultaneous reads to the last."""
        self._threads = [
            threading.Thread(target=self._read_queue, name=f"edgespec-experts-{i}", daemon=True)
            for i in range(READERS)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, reads: Iterable[SliceRead]) -> None:
        """Have slices read after those that are waiting."""
        for task in reads:
            self._queue.append(task)
            self._pending[task.layer, task.matrix] += 1
        self._work.notify(len(self._queue))

    def wait_until_idle(self) -> None:
        """Wait for all reads; nothing may be put meanwhile."""
        while (self._queue or self._n_reading) and not self.is_closing:
            self.arrival.wait()

    def close(self) -> None:
        with self.lock:
            self.is_closing = True
            self._work.notify_all()
            self.arrival.notify_all()
        for thread in self._threads:
            thread.join()
        close_all(self._reader.close, *(one.close for ranges in self.ranges for one in ranges))

    def _read_queue(self) -> None:
        """Read queued slices until `close`; runs in each reading thread."""
        while True:
            with self.lock:
                while not self.is_closing and not self._queue:
                    self._work.wait()
                if self.is_closing:
                    return
                task = self._queue.popleft()
                self._begin_reading()
            self._read(task)

    def _read(self, task: SliceRead) -> None:
        n, failure = 0, None
        matrix = self._layers[task.layer].matrices[task.matrix]
        run = matrix.run(task.expert)
        try:
            view = self.ranges[task.layer][task.matrix].view(matrix.place(task.expert), run.nbytes)
            n = self._reader.read(run, view, lambda: self.is_closing)
        except BaseException as exc:  # noqa: BLE001 - it is raised in the consumer's thread
            failure = exc
        with self.lock:
            self._counts.bytes_read += n
            self._end_reading(n)
            task.entry.unread.discard(task.matrix)
            task.entry.failure = task.entry.failure or failure
            self._pending[task.layer, task.matrix] -= 1
            if failure is not None or not self._pending[task.layer, task.matrix]:
                self.arrival.notify_all()

    def _begin_reading(self) -> None:
        if not self._n_reading:
            self._busy = self._trace.span(Track.EXPERTS, "read experts")
            self._busy_bytes = 0
        self._n_reading += 1

    def _end_reading(self, nbytes: int) -> None:
        self._n_reading -= 1
        self._busy_bytes += nbytes
        if not self._n_reading:
            self._busy.note(bytes=self._busy_bytes).end()
