"""Keeps a mixture's experts in memory as far as a budget goes, and reads those that a layer chose.

Knows when an expert was used, and nothing of any runtime. Where experts lie in files, and where in
memory, is the business of `expert_layers` and `expert_memory`, which makes room that of `eviction`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import EdgespecError
from edgespec.paging.eviction import Eviction, LeastLikely
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.expert_memory import ExpertMemory
from edgespec.paging.reader import Reader
from edgespec.tracing.spans import NO_SPAN, OFF, Span, Trace, Track
from edgespec.values import ExpertStats

READERS = 4
"""Threads that read experts: their slices are small, and one queue leaves a fast disk idle."""


@dataclass(slots=True)
class _Expert:
    """One that is in memory, or on its way; of a guest, one slice."""

    unread: set[int]
    """Matrices whose slices have not arrived."""
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """A slice to be read."""

    layer: int
    expert: int
    matrix: int
    of: _Expert


class ExpertCache(Closeable):
    """The experts of all layers that fit into `capacity_bytes`.

    `acquire` and `release` belong to one consumer thread. What was acquired stays in its place
    until it is released. A failed read raises WeightReadError in `acquire`; the next one tries
    again.
    """

    def __init__(
        self,
        layers: Sequence[ExpertLayer],
        reader: Reader,
        capacity_bytes: int,
        eviction: Eviction | None = None,
        clock: Callable[[], float] = time.perf_counter,
        trace: Trace = OFF,
    ) -> None:
        least = max(layer.n_used * layer.room_bytes for layer in layers)
        if capacity_bytes < least:
            raise EdgespecError(
                f"the cache of {capacity_bytes:,} bytes cannot hold the experts that a token "
                f"chooses in one layer: {least:,} bytes"
            )
        self.layers = tuple(layers)
        self.bytes_read = 0
        self.stall_s = 0.0
        self._hits = self._misses = 0
        self._reader = reader
        self._capacity = capacity_bytes
        self._eviction = eviction or LeastLikely([layer.n_experts for layer in layers])
        self._clock = clock
        self._trace = trace
        self._room = [layer.room_bytes for layer in layers]
        self._slice_room = [[matrix.room_bytes for matrix in layer.matrices] for layer in layers]
        self._used_bytes = 0
        self._present: list[dict[int, _Expert]] = [{} for _ in layers]
        self._guests: dict[tuple[int, int, int], _Expert] = {}
        """By layer, matrix and expert: slices that are there for one product only."""
        self._seated: set[tuple[int, int, int]] = set()
        """Guests whose product is computed now."""
        self._held: set[tuple[int, int]] = set()
        self._wanted: deque[_Task] = deque()
        self._closing = False
        self._cancelled = False
        self._n_reading = self._busy_bytes = 0
        self._busy: Span = NO_SPAN
        """From the first of several reads at a time to the last."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Something is to be read."""
        self._arrival = threading.Condition(self._lock)
        """Something was read, or the consumer is not to wait any longer."""
        self._memory = ExpertMemory(layers)
        self._threads = [
            threading.Thread(target=self._read_on, name=f"edgespec-experts-{i}", daemon=True)
            for i in range(READERS)
        ]
        for thread in self._threads:
            thread.start()

    def address(self, layer: int, matrix: int) -> int:
        """Where the stacked matrix begins; readable until `close`, whatever it holds."""
        return self._memory.address(layer, matrix)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def stats(self) -> ExpertStats:
        """Totals since the cache was made."""
        return ExpertStats(
            layers=len(self.layers),
            experts=max(layer.n_experts for layer in self.layers),
            used=max(layer.n_used for layer in self.layers),
            cache_bytes=self._capacity,
            hits=self._hits,
            misses=self._misses,
            bytes_read=self.bytes_read,
            stall_s=self.stall_s,
        )

    @property
    def read_s(self) -> float:
        """No pass needs all experts: what is read was chosen, or may be."""
        return 0.0

    @property
    def choice_stall_s(self) -> float:
        return self.stall_s

    def holds(self, layer: int, n_experts: int) -> bool:
        """Whether so many experts of a layer fit at once."""
        return n_experts * self._room[layer] <= self._capacity

    def acquire(self, layer: int, choices: np.ndarray) -> bool:
        """Have the experts of a layer in their places, int [n_tokens, n_used]; False once
        cancelled.

        Waits for their slices of all matrices but the last one, for which `complete` waits: it is
        read while those before it are computed. Raises EdgespecError when they do not fit together.
        """
        chosen = np.unique(choices).tolist()
        if not self.holds(layer, len(chosen)):
            raise EdgespecError(
                f"{len(chosen)} experts of {self.layers[layer].name} do not fit into the cache of "
                f"{self._capacity:,} bytes"
            )
        with self._lock:
            self._count(layer, chosen, choices)
            self._held.update((layer, expert) for expert in chosen)
            last = len(self.layers[layer].matrices) - 1
            return self._wait(layer, chosen, {last} if last else set())

    def complete(self, layer: int) -> bool:
        """Wait for all that `acquire` asked for; False once cancelled."""
        with self._lock:
            chosen = [expert for there, expert in self._held if there == layer]
            return self._wait(layer, chosen, set())

    def choose(self, layer: int, choices: np.ndarray) -> None:
        """More experts of a layer were chosen than fit together: `rounds` brings them."""
        with self._lock:
            self._count(layer, np.unique(choices).tolist(), choices)

    def rounds(self, layer: int, matrix: int, choices: np.ndarray) -> Iterator[list[int]]:
        """The chosen experts in groups, whose slices of one matrix are in their places until the
        next group is asked for; every slice is read once. Ends early once cancelled.

        Raises WeightReadError.
        """
        left = np.unique(choices).tolist()
        while left:
            with self._lock:
                group = self._gather(layer, matrix, left)
            if not group:
                return
            try:
                yield group
            finally:
                with self._lock:
                    self._part(layer)
            left = [expert for expert in left if expert not in group]

    def release(self, layer: int) -> None:
        """The experts of a layer may make room for others."""
        with self._lock:
            self._let_go(layer)

    def cancel(self) -> None:
        """Wake a waiting `acquire`, which returns False; lasts until `resume`."""
        with self._lock:
            self._cancelled = True
            self._arrival.notify_all()

    def resume(self) -> None:
        with self._lock:
            self._cancelled = False

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._arrival.notify_all()
        for thread in self._threads:
            thread.join()
        close_all(self._reader.close, self._memory.close)

    def _count(self, layer: int, chosen: Sequence[int], choices: np.ndarray) -> None:
        present = self._present[layer]
        self._failure(layer, chosen)  # of an earlier pass: they are tried again
        n_missing = sum(expert not in present for expert in chosen)
        self._misses += n_missing
        self._hits += len(chosen) - n_missing
        self._eviction.use(layer, choices)

    def _gather(self, layer: int, matrix: int, left: Sequence[int]) -> list[int]:
        """As many of the experts as there is room for, once their slices have arrived; none once
        cancelled."""
        group: list[int] = []
        while not self._cancelled and not self._closing:
            group = group or self._invite(layer, matrix, left)
            units = [self._unit(layer, matrix, expert) for expert in group]
            if group and not any(matrix in unit.unread for unit in units):
                failure = next((unit.failure for unit in units if unit.failure), None)
                if failure is None:
                    return group
                self._part(layer)
                self._failure(layer, group)
                raise failure
            with self._stalled(layer):
                self._arrival.wait()
        self._part(layer)
        return []

    def _invite(self, layer: int, matrix: int, left: Sequence[int]) -> list[int]:
        """Those that are there, and guests as far as there is room."""
        group = [expert for expert in left if self._is_there(layer, matrix, expert)]
        self._held.update((layer, expert) for expert in group)
        self._seated = {(layer, matrix, expert) for expert in group}
        room_bytes = self._slice_room[layer][matrix]
        for expert in left:
            if self._is_there(layer, matrix, expert):
                continue
            if not self._make_room(room_bytes):
                break
            guest = self._guests[layer, matrix, expert] = _Expert({matrix})
            self._used_bytes += room_bytes
            self._seated.add((layer, matrix, expert))
            self._wanted.append(_Task(layer, expert, matrix, guest))
            group.append(expert)
        self._work.notify(len(self._wanted))
        return group

    def _part(self, layer: int) -> None:
        """A group was computed, or is given up: what is not being read goes."""
        self._let_go(layer)
        self._seated = set()
        self._dismiss()

    def _dismiss(self) -> None:
        """Guests whose product is not computed now, as far as they have arrived."""
        gone = [
            unit
            for unit, guest in self._guests.items()
            if unit not in self._seated and not guest.unread
        ]
        for layer, matrix, expert in gone:
            del self._guests[layer, matrix, expert]
            self._used_bytes -= self._slice_room[layer][matrix]
            self._forget(layer, matrix, expert)

    def _unit(self, layer: int, matrix: int, expert: int) -> _Expert:
        return self._guests.get((layer, matrix, expert)) or self._present[layer][expert]

    def _is_there(self, layer: int, matrix: int, expert: int) -> bool:
        """In memory, or on its way."""
        return expert in self._present[layer] or (layer, matrix, expert) in self._guests

    def _let_go(self, layer: int) -> None:
        self._held = {unit for unit in self._held if unit[0] != layer}

    def _wait(self, layer: int, chosen: Sequence[int], spared: set[int]) -> bool:
        """For the slices of the chosen experts, but for those of the matrices in `spared`."""
        self._request(layer, chosen)
        if self._all_arrived(layer, chosen, spared):
            return True
        with self._stalled(layer):
            while not self._cancelled and not self._closing:
                failure = self._failure(layer, chosen)
                if failure is not None:
                    self._let_go(layer)
                    raise failure
                self._request(layer, chosen)
                if self._all_arrived(layer, chosen, spared):
                    return True
                self._arrival.wait()
            self._let_go(layer)
            return False

    @contextmanager
    def _stalled(self, layer: int) -> Iterator[None]:
        """Around computing's waiting for a layer's experts."""
        begin = self._clock()
        try:
            yield
        finally:
            end = self._clock()
            self.stall_s += end - begin
            self._trace.add(Track.TARGET, "stall", begin, end, layer=self.layers[layer].name)

    def _request(self, layer: int, chosen: Sequence[int]) -> None:
        """Ask for those that are not there, as far as there is room: what is on its way cannot
        make any before it arrives."""
        missing = [expert for expert in chosen if expert not in self._present[layer]]
        if missing:
            self._enqueue(layer, [expert for expert in missing if self._begin(layer, expert)])

    def _begin(self, layer: int, expert: int) -> bool:
        """Make room for an expert that is to be read; False if there is none."""
        if not self._make_room(self._room[layer]):
            return False
        self._present[layer][expert] = _Expert(set(range(len(self.layers[layer].matrices))))
        self._used_bytes += self._room[layer]
        self._eviction.add(layer, expert)
        return True

    def _enqueue(self, layer: int, experts: Sequence[int]) -> None:
        """Matrix by matrix, as they are computed."""
        for matrix in range(len(self.layers[layer].matrices)):
            self._wanted.extend(
                _Task(layer, expert, matrix, self._present[layer][expert]) for expert in experts
            )
        self._work.notify(len(self._wanted))

    def _all_arrived(self, layer: int, chosen: Sequence[int], spared: set[int]) -> bool:
        present = self._present[layer]
        return all(
            expert in present
            and present[expert].unread <= spared
            and present[expert].failure is None
            for expert in chosen
        )

    def _failure(self, layer: int, chosen: Sequence[int]) -> BaseException | None:
        """The failure of one of the chosen, which is forgotten once nothing of it is in flight."""
        present = self._present[layer]
        failed = [e for e in chosen if e in present and present[e].failure is not None]
        if any(present[expert].unread for expert in failed):
            return None
        failure = None
        for expert in failed:
            failure = present[expert].failure
            self._drop(layer, expert)
        return failure

    def _make_room(self, nbytes: int) -> bool:
        """Drop what is needed last until so many bytes fit."""
        self._dismiss()
        while self._used_bytes + nbytes > self._capacity:
            victim = self._eviction.victim(self._may_go)
            if victim is None:
                return False
            self._drop(*victim)
        return True

    def _may_go(self, layer: int, expert: int) -> bool:
        return (layer, expert) not in self._held and not self._present[layer][expert].unread

    def _drop(self, layer: int, expert: int) -> None:
        del self._present[layer][expert]
        self._used_bytes -= self._room[layer]
        self._eviction.remove(layer, expert)
        for matrix in range(len(self.layers[layer].matrices)):
            self._forget(layer, matrix, expert)

    def _forget(self, layer: int, matrix: int, expert: int) -> None:
        """Give back the memory of a slice, but for blocks that are still needed."""
        if self._is_there(layer, matrix, expert):
            return
        self._memory.forget(
            layer,
            matrix,
            expert,
            keeps_before=self._is_there(layer, matrix, expert - 1),
            keeps_after=self._is_there(layer, matrix, expert + 1),
        )

    def _read_on(self) -> None:
        """A reading thread."""
        while True:
            with self._lock:
                while not (self._closing or self._wanted):
                    self._work.wait()
                if self._closing:
                    return
                task = self._wanted.popleft()
                self._begin_reading()
            self._read(task)

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
            self._trace.count_bytes("experts (MiB)", held=self._used_bytes)

    def _read(self, task: _Task) -> None:
        n, failure = 0, None
        run = self.layers[task.layer].matrices[task.matrix].run(task.expert)
        try:
            view = self._memory.view(task.layer, task.matrix, run)
            n = self._reader.read(run, view, lambda: self._closing)
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the consumer must hear of it
            failure = exc
        with self._lock:
            self.bytes_read += n
            self._end_reading(n)
            task.of.unread.discard(task.matrix)
            task.of.failure = task.of.failure or failure
            self._arrival.notify_all()
