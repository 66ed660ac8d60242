"""Memory of a mixture's experts, at addresses that never change.

Every stacked matrix has an address range with a place for each expert, and memory behind it only
where an expert was read. Callers say which slices come and go; nothing here knows which are in use.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.pages import move_pages, populate
from edgespec.paging.reader import AlignedMemory

Slice = tuple[int, int, int]
"""Layer, matrix and expert."""
MAX_MOVED_PLACES = 30_000
"""Most places that pages may move to: each leaves two mappings, itself and the gap behind it. Linux
allows a process 65,530 by default."""
HUGE_BYTES = 2 << 20
"""Bytes of a huge page on most machines."""
MIN_SUPPLY_BYTES = 32 * HUGE_BYTES
"""Less memory than this is not supplied in huge pages."""


class ExpertMemory(Closeable):
    """The address ranges of all matrices, readable until `close`, whatever they hold.

    The memory comes from one supply of `capacity_bytes`, in huge pages if there are some, and moves
    from the places of evicted slices to those of others: each was zeroed once. Only the first
    MAX_MOVED_PLACES places get moved pages; memory of the others is freed and zeroed again.
    """

    def __init__(self, layers: Sequence[ExpertLayer], capacity_bytes: int) -> None:
        self._layers = layers
        self._ranges: list[list[AlignedMemory]] = []
        self._room = [[matrix.room_bytes for matrix in layer.matrices] for layer in layers]
        self._supply: AlignedMemory | None = None
        self._n_supplied_bytes = self._n_populated_bytes = 0
        self._populating = threading.Lock()
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._populate_ahead, name="edgespec-memory", daemon=True
        )
        self._moves = True
        self._moved_to: set[Slice] = set()
        """Slices to whose places pages have moved."""
        try:
            for layer in layers:
                self._ranges.append([])
                for matrix in layer.matrices:
                    self._ranges[-1].append(AlignedMemory(matrix.range_bytes, sparse=True))
            if capacity_bytes >= MIN_SUPPLY_BYTES:
                self._supply = AlignedMemory(capacity_bytes)
                self._thread.start()
        except BaseException:
            self.close()
            raise

    def address(self, layer: int, matrix: int) -> int:
        """Address of the first expert's slice; the others follow every `stride_bytes`."""
        first = self._layers[layer].matrices[matrix].run(0)
        extent = self._layers[layer].matrices[matrix].extent
        return self._ranges[layer][matrix].address + extent.offset - first.start

    def view(self, key: Slice, nbytes: int) -> memoryview:
        """The place of a slice, to be read into."""
        layer, matrix, _ = key
        return self._ranges[layer][matrix].view(self._place(key)[0], nbytes)

    def reuse(self, key: Slice, evicted: Sequence[Slice]) -> bool:
        """Put the memory of evicted slices behind another, and free what is of no use there; False
        if there was none."""
        is_moved = False
        if evicted and self._may_move(key):
            is_moved = self._moves = self._move(evicted[0], key)
        for source in evicted[1:] if is_moved else evicted:
            self.forget(source)
        return is_moved

    def reserve(self, key: Slice) -> int | None:
        """Memory of the supply for a slice; None if none is left."""
        start, (_, nbytes) = self._n_supplied_bytes, self._place(key)
        if not self._supply or start + nbytes > self._supply.nbytes:
            return None
        if not self._may_move(key):
            self.free_supply()
            return None
        self._n_supplied_bytes += nbytes
        return self._supply.address + start

    def take(self, key: Slice, reserved: int) -> None:
        """Put reserved memory behind a slice. May take milliseconds."""
        assert self._supply is not None
        _, nbytes = self._place(key)
        self._populate(reserved + nbytes - self._supply.address)
        move_pages(reserved, self._address(key), nbytes)

    def forget(self, key: Slice) -> None:
        """Free the memory of a slice."""
        layer, matrix, _ = key
        start, nbytes = self._place(key)
        self._ranges[layer][matrix].forget(start, nbytes)

    def free_supply(self) -> None:
        """Free what was not reserved: slices that cannot have it get pages of their own."""
        if self._supply is None or self._n_supplied_bytes == self._supply.nbytes:
            return
        with self._populating:
            self._supply.forget(self._n_supplied_bytes)
            self._n_supplied_bytes = self._n_populated_bytes = self._supply.nbytes

    def _may_move(self, key: Slice) -> bool:
        """True if pages may move to the place of a slice, which counts from then on."""
        if self._moves and len(self._moved_to) < MAX_MOVED_PLACES:
            self._moved_to.add(key)
        return self._moves and key in self._moved_to

    def _move(self, source: Slice, target: Slice) -> bool:
        """Move the memory of a slice; what the other has no use for is freed."""
        (start, nbytes), (_, target_bytes) = self._place(source), self._place(target)
        moved_bytes = min(nbytes, target_bytes)
        is_moved = move_pages(self._address(source), self._address(target), moved_bytes)
        if is_moved and nbytes > moved_bytes:
            layer, matrix, _ = source
            self._ranges[layer][matrix].forget(start + moved_bytes, nbytes - moved_bytes)
        return is_moved

    def _populate_ahead(self) -> None:
        """Have memory ready before the first slice is read; runs in a thread of its own."""
        assert self._supply is not None
        reached = 0
        while not self._n_supplied_bytes and not self._is_closing and reached < self._supply.nbytes:
            reached += HUGE_BYTES
            self._populate(reached)

    def _populate(self, end: int) -> None:
        """Put pages behind the supply up to `end`, each once: some may have moved away since."""
        assert self._supply is not None
        with self._populating:
            nbytes = min(end, self._supply.nbytes) - self._n_populated_bytes
            if nbytes > 0:
                populate(self._supply.address + self._n_populated_bytes, nbytes)
                self._n_populated_bytes += nbytes

    def _place(self, key: Slice) -> tuple[int, int]:
        """Offset in the matrix's range, and bytes, of the place of a slice."""
        layer, matrix, expert = key
        return self._layers[layer].matrices[matrix].place(expert), self._room[layer][matrix]

    def _address(self, key: Slice) -> int:
        layer, matrix, _ = key
        return self._ranges[layer][matrix].address + self._place(key)[0]

    def close(self) -> None:
        self._is_closing = True
        if self._thread.is_alive():
            self._thread.join()
        ranges = [memory.close for ranges in self._ranges for memory in ranges]
        close_all(*ranges, *((self._supply.close,) if self._supply else ()))
