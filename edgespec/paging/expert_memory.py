"""Memory of a mixture's experts, at addresses that never change.

Every stacked matrix has an address range with a place for each expert, and memory behind it only
where an expert was read. Callers say which slices come and go; nothing here knows which are in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.pages import move_pages
from edgespec.paging.reader import AlignedMemory

Slice = tuple[int, int, int]
"""Layer, matrix and expert."""
MAX_PLACES = 31_000
"""Most places of a model whose pages move: each leaves two mappings, itself and the gap behind it.
Linux allows a process 65,530 by default."""


class ExpertMemory(Closeable):
    """The address ranges of all matrices, readable until `close`, whatever they hold.

    Memory of slices that were let go moves to the places of others, so that it was zeroed once:
    zeroing costs four times the processor time of reading. With more than MAX_PLACES it is freed
    and zeroed again. Places that are in use and those that were let go have at most
    `capacity_bytes`, if those in use have no more.
    """

    def __init__(self, layers: Sequence[ExpertLayer], capacity_bytes: int) -> None:
        self._layers = layers
        self._capacity = capacity_bytes
        self._room = [[matrix.room_bytes for matrix in layer.matrices] for layer in layers]
        self._ranges = [
            [AlignedMemory(matrix.range_bytes, sparse=True) for matrix in layer.matrices]
            for layer in layers
        ]
        self._held: set[Slice] = set()
        """Slices whose places have memory."""
        self._held_bytes = 0
        self._unused: dict[Slice, None] = {}
        """Those of them that were let go, in this order."""
        n_places = sum(layer.n_experts * len(layer.matrices) for layer in layers)
        self._can_move = n_places <= MAX_PLACES

    def address(self, layer: int, matrix: int) -> int:
        """Address of the first expert's slice; the others follow every `stride_bytes`."""
        first = self._layers[layer].matrices[matrix].run(0)
        extent = self._layers[layer].matrices[matrix].extent
        return self._ranges[layer][matrix].address + extent.offset - first.start

    def view(self, key: Slice, nbytes: int) -> memoryview:
        """The place of a slice, to be read into."""
        layer, matrix, _ = key
        return self._ranges[layer][matrix].view(self._place(key)[0], nbytes)

    def provide(self, key: Slice) -> None:
        """Put memory behind a slice, that of one that was let go if possible."""
        self._unused.pop(key, None)
        if key not in self._held:
            if self._unused and self._can_move:
                self._can_move = self._move(next(iter(self._unused)), key)
            self._held.add(key)
            self._held_bytes += self._place(key)[1]
        self.resize(self._capacity)

    def let_go(self, key: Slice) -> None:
        """Have the memory of a slice, if it has some, for others."""
        if key in self._held:
            self._unused[key] = None

    def resize(self, capacity_bytes: int) -> None:
        """Free memory that was let go, until no more than `capacity_bytes` is left."""
        self._capacity = capacity_bytes
        while self._unused and self._held_bytes > capacity_bytes:
            self._free(next(iter(self._unused)))

    def _move(self, source: Slice, target: Slice) -> bool:
        """Move the memory of a slice, as much as the other has use for, and free the rest; False if
        the kernel cannot."""
        moved_bytes = min(self._place(source)[1], self._place(target)[1])
        is_moved = move_pages(self._address(source), self._address(target), moved_bytes)
        self._free(source)
        return is_moved

    def _free(self, key: Slice) -> None:
        layer, matrix, _ = key
        start, nbytes = self._place(key)
        self._ranges[layer][matrix].forget(start, nbytes)
        self._held.remove(key)
        self._held_bytes -= nbytes
        del self._unused[key]

    def _place(self, key: Slice) -> tuple[int, int]:
        """Offset in the matrix's range, and bytes, of the place of a slice."""
        layer, matrix, expert = key
        return self._layers[layer].matrices[matrix].place(expert), self._room[layer][matrix]

    def _address(self, key: Slice) -> int:
        layer, matrix, _ = key
        return self._ranges[layer][matrix].address + self._place(key)[0]

    def close(self) -> None:
        close_all(*(memory.close for ranges in self._ranges for memory in ranges))
