"""Files of random experts, caches of them, and a reader whose reads wait or fail."""

from __future__ import annotations

import ctypes
import mmap
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import WeightReadError
from edgespec.paging.expert_cache import ExpertCache
from edgespec.paging.expert_layers import ExpertLayer, ExpertMatrix
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Extent, Run

SLICE = 3 * BLOCK_BYTES + 160
"""Neighbours share blocks."""


def make_layers(
    n_layers: int, n_experts: int, sizes: Sequence[int] = (SLICE, SLICE + 64), begin: int = 96
) -> list[ExpertLayer]:
    """Matrices with slices of these sizes in each layer, packed behind one another from byte
    `begin` on."""
    layers, offset = [], begin
    for number in range(n_layers):
        matrices = []
        for nbytes in sizes:
            extent = Extent(0, offset, n_experts * nbytes)
            matrices.append(ExpertMatrix(extent, n_experts))
            offset += extent.nbytes
        layers.append(ExpertLayer(f"layer {number}", tuple(matrices), n_used=2))
    return layers


def make_file(folder: Path, layers: Sequence[ExpertLayer]) -> Path:
    last = layers[-1].matrices[-1].extent
    path = folder / "weights.bin"
    path.write_bytes(random.Random(7).randbytes(last.offset + last.nbytes))
    return path


def room_of(layers: Sequence[ExpertLayer]) -> int:
    return max(layer.room_bytes for layer in layers)


def choice(experts: Sequence[int]) -> np.ndarray:
    """Choices of one token."""
    return np.array([experts])


def slices(cache: ExpertCache, layer: int, expert: int) -> list[bytes]:
    """Contents of an expert's slices in memory."""
    matrices = range(len(cache.layers[layer].matrices))
    return [slice_in(cache, layer, matrix, expert) for matrix in matrices]


def slice_in(cache: ExpertCache, layer: int, matrix: int, expert: int) -> bytes:
    of_matrix = cache.layers[layer].matrices[matrix]
    begin = cache.address(layer, matrix) + expert * of_matrix.stride_bytes
    return ctypes.string_at(begin, of_matrix.slice_bytes)


def slices_in(content: bytes, layer: ExpertLayer, expert: int) -> list[bytes]:
    begins = [matrix.extent.offset + expert * matrix.slice_bytes for matrix in layer.matrices]
    return [
        content[begin : begin + matrix.slice_bytes]
        for begin, matrix in zip(begins, layer.matrices, strict=True)
    ]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


class Gate:
    """A reader whose reads can be made to wait, or to fail."""

    def __init__(self, path: Path) -> None:
        self._reader = DirectReader([path])
        self.open = threading.Event()
        self.open.set()
        self.failing = False
        self.waiting: Callable[[Run], bool] = lambda run: True
        """Reads that wait until the gate is open."""

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        while self.waiting(run) and not self.open.wait(0.01):
            if stopped():
                return 0
        if self.failing:
            raise WeightReadError("the disk is on fire")
        return self._reader.read(run, into, stopped)

    def close(self) -> None:
        self._reader.close()


THREE_LAYERS = make_layers(3, n_experts=6)


@contextmanager
def over_three_layers(
    folders: pytest.TempPathFactory, capacity: int
) -> Iterator[tuple[ExpertCache, bytes]]:
    """A cache, and its file's content: of a drawn example, for which fixtures are too wide."""
    path = make_file(folders.mktemp("experts"), THREE_LAYERS)
    with ExpertCache(THREE_LAYERS, DirectReader([path]), capacity) as cache:
        yield cache, path.read_bytes()


def resident_bytes(cache: ExpertCache) -> int:
    """Resident bytes of the matrices' address ranges, page by page: the kernel's maps may join a
    range with its neighbour, such as a thread's stack."""
    total = 0
    for memory in (one for ranges in cache._reads.ranges for one in ranges):
        pages = (ctypes.c_ubyte * (memory.nbytes // mmap.PAGESIZE))()
        address, nbytes = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.nbytes)
        assert ctypes.CDLL(None).mincore(address, nbytes, pages) == 0
        total += mmap.PAGESIZE * sum(page & 1 for page in pages)
    return total
