"""Keeps a mixture's experts in memory as far as a budget goes, and reads those that a layer chose.

Knows when an expert was used, and nothing of any runtime. `expert_layers` has their extents in
files, `eviction` the choice of what is dropped, `slice_reads` the memory and the threads that read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edgespec.paging.eviction import LeastLikely
from edgespec.paging.expert_layers import ExpertLayer, chosen_experts
from edgespec.paging.reader import BLOCK_BYTES, Reader
from edgespec.paging.slice_reads import Entry, SliceRead, SliceReads
from edgespec.paging.store import Store
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import ExpertStats


class ExpertCache(Store):
    """A cache of experts of all layers, of `capacity_bytes`, which hold at least what a token
    chooses in one layer.

    `acquire` and `release` belong to one consumer thread. An acquired expert stays in memory until
    it is released. A failed read raises WeightReadError in `acquire`; the next one tries again.
    """

    def __init__(
        self,
        layers: Sequence[ExpertLayer],
        reader: Reader,
        capacity_bytes: int,
        eviction: LeastLikely | None = None,
        trace: Trace = OFF,
    ) -> None:
        self.layers = tuple(layers)
        self._hits = self._misses = 0
        self._capacity = capacity_bytes
        self._eviction = eviction or LeastLikely([layer.n_experts for layer in layers])
        self._trace = trace
        self._room = [layer.room_bytes for layer in layers]
        self._slice_room = [[matrix.room_bytes for matrix in layer.matrices] for layer in layers]
        self.used_bytes = 0
        self._entries: list[dict[int, Entry]] = [{} for _ in layers]
        """Experts that are in memory or being read, by layer."""
        self._transient: set[tuple[int, int]] = set()
        """Those of which a single slice is there, for one product."""
        self._group: set[tuple[int, int]] = set()
        """Those of the group that is computed now."""
        self._acquired: set[tuple[int, int]] = set()
        self._cancelled = False
        self._first_row_share = 1.0
        """Share of the experts read for the last choice that its first token chose."""
        self._reads = SliceReads(layers, reader, self, trace)
        self._lock = self._reads.lock

    def address(self, layer: int, matrix: int) -> int:
        """Address of the stacked matrix, whose experts are `stride_bytes` apart; readable until
        `close`, whatever it holds."""
        extent = self.layers[layer].matrices[matrix].extent
        return self._reads.ranges[layer][matrix].address + extent.offset % BLOCK_BYTES

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

    def holds(self, layer: int, n_experts: int) -> bool:
        """True if so many experts of a layer fit at once."""
        return n_experts * self._room[layer] <= self._capacity

    def acquire(self, layer: int, choices: np.ndarray) -> bool:
        """Read the chosen experts of a layer, int [n_tokens, n_used]; False once cancelled.

        Waits for their slices of all matrices but the last, for which `complete` waits: it is read
        while the others are computed. They must fit at once, as `holds` tells.
        """
        chosen = chosen_experts(choices)
        with self._lock:
            self._count(layer, chosen, choices)
            self._acquired.update((layer, expert) for expert in chosen)
            last = len(self.layers[layer].matrices) - 1
            return self._bring(layer, chosen, {last} if last else set())

    def complete(self, layer: int) -> bool:
        """Wait for all slices of the acquired experts; False once cancelled."""
        with self._lock:
            chosen = [expert for of_layer, expert in self._acquired if of_layer == layer]
            return self._bring(layer, chosen, set())

    def choose(self, layer: int, choices: np.ndarray) -> None:
        """Count the choice of more experts than fit at once; `groups` reads them."""
        with self._lock:
            self._count(layer, chosen_experts(choices), choices)

    def groups(self, layer: int, matrix: int, choices: np.ndarray) -> Iterator[list[int]]:
        """Groups of the chosen experts, whose slices of one matrix are in memory until the next
        group is asked for; every slice is read once. Ends early once cancelled.

        Raises WeightReadError.
        """
        remaining = chosen_experts(choices)
        while remaining:
            with self._lock:
                group = self._gather(layer, matrix, remaining)
            if not group:
                return
            try:
                yield group
            finally:
                with self._lock:
                    self._end_group(layer)
            remaining = [expert for expert in remaining if expert not in group]

    def release(self, layer: int) -> None:
        """Let the experts of a layer be evicted again."""
        with self._lock:
            self._release(layer)

    def resize(self, capacity_bytes: int) -> None:
        """Hold at most so many bytes from now on; nothing may be acquired.

        Waits for reads that are under way.
        """
        with self._lock:
            self._reads.wait_until_idle()
            self._capacity = capacity_bytes
            self._make_room(0)

    def cancel(self) -> None:
        """Wake a waiting `acquire`, which returns False; lasts until `resume`."""
        with self._lock:
            self._cancelled = True
            self._reads.arrival.notify_all()

    def resume(self) -> None:
        with self._lock:
            self._cancelled = False

    def close(self) -> None:
        self._reads.close()

    def _count(self, layer: int, chosen: Sequence[int], choices: np.ndarray) -> None:
        present = self._entries[layer]
        self._failure(layer, chosen)  # a failure of an earlier pass is forgotten and tried again
        n_missing = sum(expert not in present for expert in chosen)
        n_first = sum(expert not in present for expert in set(choices[:1].ravel().tolist()))
        self._first_row_share = n_first / n_missing if n_missing else 1.0
        self._misses += n_missing
        self._hits += len(chosen) - n_missing
        self._eviction.use(layer, choices)

    def _gather(self, layer: int, matrix: int, remaining: Sequence[int]) -> list[int]:
        """A group of as many experts as there is room for, when their slices are read; empty once
        cancelled."""
        group, present = list[int](), self._entries[layer]

        def arrived() -> bool:
            group.extend(() if group else self._request_group(layer, matrix, remaining))
            return bool(group) and not any(matrix in present[expert].unread for expert in group)

        if self._cancelled or not self._wait(layer, arrived):
            self._end_group(layer)
            return []
        failures = (present[expert].failure for expert in group)
        if failure := next(filter(None, failures), None):
            self._end_group(layer)
            self._failure(layer, group)
            raise failure
        return group

    def _request_group(self, layer: int, matrix: int, remaining: Sequence[int]) -> list[int]:
        """The experts that are there, and single slices of others as far as there is room."""
        present, reads = self._entries[layer], []
        group = [e for e in remaining if e in present and matrix in present[e].matrices]
        self._group = {(layer, expert) for expert in group}
        self._acquired |= self._group
        for expert in remaining:
            if expert not in present and (entry := self._begin(layer, expert, [matrix])):
                self._transient.add((layer, expert))
                self._group.add((layer, expert))
                reads.append(SliceRead(layer, expert, matrix, entry))
                group.append(expert)
        self._reads.put(reads)
        return group

    def _end_group(self, layer: int) -> None:
        """Release a group that was computed or given up."""
        self._release(layer)
        self._group = set()
        self._drop_transient()

    def _drop_transient(self) -> None:
        """Free single slices that are read and outside the current group."""
        for layer, expert in self._transient - self._group:
            if not self._entries[layer][expert].unread:
                self._remove(layer, expert)

    def _release(self, layer: int) -> None:
        self._acquired = {key for key in self._acquired if key[0] != layer}

    def _bring(self, layer: int, chosen: Sequence[int], excluded: set[int]) -> bool:
        """Wait for the slices of the chosen experts, except those of the matrices in `excluded`;
        False once cancelled."""

        def arrived() -> bool:
            if failure := self._failure(layer, chosen):
                self._release(layer)
                raise failure
            self._request(layer, chosen)
            return self._all_arrived(layer, chosen, excluded)

        if self._wait(layer, arrived):
            return True
        self._release(layer)
        return False

    def _wait(self, layer: int, arrived: Callable[[], bool]) -> bool:
        """Wait until something for a layer's experts has arrived; False once cancelled."""
        if arrived():
            return True
        begin = time.perf_counter()
        try:
            while not self._cancelled and not self._reads.is_closing:
                self._reads.arrival.wait()
                if arrived():
                    return True
            return False
        finally:
            end = time.perf_counter()
            self.stall_s += end - begin
            self.choice_stall_s = self.stall_s
            self.first_row_stall_s += self._first_row_share * (end - begin)
            self._trace.add(Track.TARGET, "stall", begin, end, layer=self.layers[layer].name)

    def _request(self, layer: int, chosen: Sequence[int]) -> None:
        """Queue the missing experts as far as there is room, matrix by matrix, in the order in
        which they are computed; those being read cannot be evicted before they are complete."""
        self._drop_transient()
        present, begun = self._entries[layer], dict[int, Entry]()
        matrices = range(len(self.layers[layer].matrices))
        for expert in chosen:
            if expert not in present and (entry := self._begin(layer, expert, matrices)):
                begun[expert] = entry
                self._eviction.add(layer, expert)
        self._reads.put(
            SliceRead(layer, expert, matrix, entry)
            for matrix in matrices
            for expert, entry in begun.items()
        )

    def _begin(self, layer: int, expert: int, matrices: Sequence[int]) -> Entry | None:
        """A new entry for an expert's slices of some matrices; None if there is no room."""
        room_bytes = sum(self._slice_room[layer][matrix] for matrix in matrices)
        if not self._make_room(room_bytes):
            return None
        self.used_bytes += room_bytes
        entry = self._entries[layer][expert] = Entry(matrices, {*matrices})
        return entry

    def _all_arrived(self, layer: int, chosen: Sequence[int], excluded: set[int]) -> bool:
        present = self._entries[layer]
        return all(
            expert in present
            and (layer, expert) not in self._transient
            and present[expert].unread <= excluded
            and present[expert].failure is None
            for expert in chosen
        )

    def _failure(self, layer: int, chosen: Sequence[int]) -> BaseException | None:
        """The failure of one of the chosen experts, whose entry is dropped; None while one of its
        slices is being read."""
        present = self._entries[layer]
        failed = [e for e in chosen if e in present and present[e].failure is not None]
        if any(present[expert].unread for expert in failed):
            return None
        failure = None
        for expert in failed:
            failure = present[expert].failure
            self._remove(layer, expert)
        return failure

    def _make_room(self, nbytes: int) -> bool:
        """Evict experts until so many bytes fit; False if too few may be evicted."""
        self._drop_transient()
        while self.used_bytes + nbytes > self._capacity:
            victim = self._eviction.victim(self._may_evict)
            if victim is None:
                return False
            self._remove(*victim)
        return True

    def _may_evict(self, layer: int, expert: int) -> bool:
        return (layer, expert) not in self._acquired and not self._entries[layer][expert].unread

    def _remove(self, layer: int, expert: int) -> None:
        for number in self._entries[layer].pop(expert).matrices:
            self.used_bytes -= self._slice_room[layer][number]
            matrix = self.layers[layer].matrices[number]
            nbytes = matrix.run(expert).nbytes
            self._reads.ranges[layer][number].forget(matrix.place(expert), nbytes)
        if (layer, expert) in self._transient:
            self._transient.remove((layer, expert))
        else:
            self._eviction.remove(layer, expert)
