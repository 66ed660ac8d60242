"""The cache of experts: right bytes in their places, within its room, from any storage."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import EdgespecError, WeightReadError
from edgespec.paging.expert_layers import ExpertLayer, ExpertMatrix
from edgespec.paging.experts import ExpertCache
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Extent, Run
from edgespec.tracing.spans import Track
from least_recent import LeastRecent
from traces import read, spans, trace_in_memory

SLICE = 3 * BLOCK_BYTES + 160
"""Neighbours share blocks."""


def make_layers(
    n_layers: int,
    n_experts: int,
    n_used: int = 2,
    sizes: Sequence[int] = (SLICE, SLICE + 64),
    begin: int = 96,
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
        layers.append(ExpertLayer(f"layer {number}", tuple(matrices), n_used))
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
    nbytes = cache.layers[layer].matrices[matrix].slice_bytes
    return ctypes.string_at(cache.address(layer, matrix) + expert * nbytes, nbytes)


def slices_in(content: bytes, layer: ExpertLayer, expert: int) -> list[bytes]:
    begins = [matrix.extent.offset + expert * matrix.slice_bytes for matrix in layer.matrices]
    return [
        content[begin : begin + matrix.slice_bytes]
        for begin, matrix in zip(begins, layer.matrices, strict=True)
    ]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
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
        """Which reads wait until the gate is open."""

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        while self.waiting(run) and not self.open.wait(0.01):
            if stopped():
                return 0
        if self.failing:
            raise WeightReadError("the disk is on fire")
        return self._reader.read(run, into, stopped)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., tuple[ExpertCache, Gate, bytes]]]:
    made: list[tuple[ExpertCache, Gate]] = []

    def make(layers: Sequence[ExpertLayer], n_fitting: int) -> tuple[ExpertCache, Gate, bytes]:
        path = make_file(tmp_path, layers)
        gate = Gate(path)
        cache = ExpertCache(layers, gate, n_fitting * room_of(layers))
        made.append((cache, gate))
        return cache, gate, path.read_bytes()

    yield make
    for cache, gate in made:
        gate.open.set()
        cache.close()


THREE_LAYERS = make_layers(3, n_experts=6)


@contextmanager
def over_three_layers(
    folders: pytest.TempPathFactory, capacity: int
) -> Iterator[tuple[ExpertCache, bytes]]:
    """A cache, and its file's content: of a drawn example, for which fixtures are too wide."""
    path = make_file(folders.mktemp("experts"), THREE_LAYERS)
    with ExpertCache(THREE_LAYERS, DirectReader([path]), capacity) as cache:
        yield cache, path.read_bytes()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_was_chosen_is_there_whatever_was_chosen_before(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any choices, a cache from the least to everything: dropping leaves neighbours whole."""
    n_fitting = data.draw(st.integers(2, 18))
    capacity = n_fitting * room_of(THREE_LAYERS)
    with over_three_layers(tmp_path_factory, capacity) as (cache, content):
        for _ in range(data.draw(st.integers(1, 5))):
            for number, layer in enumerate(THREE_LAYERS):
                most = min(6, n_fitting)
                chosen = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=most))
                assert cache.acquire(number, choice(chosen))
                assert cache.complete(number)
                assert cache.used_bytes <= capacity
                for expert in chosen:
                    assert slices(cache, number, expert) == slices_in(content, layer, expert)
                cache.release(number)


def test_what_is_there_is_not_read_again(opened: Callable[..., tuple]) -> None:
    cache, _, _ = opened(make_layers(2, 4), n_fitting=8)
    for _ in range(3):
        for layer in (0, 1):
            assert cache.acquire(layer, choice([0, 2])) and cache.complete(layer)
            cache.release(layer)
    assert (cache.stats.misses, cache.stats.hits) == (4, 8)
    assert cache.stats.bytes_read == sum(
        matrix.run(expert).nbytes
        for layer in cache.layers
        for matrix in layer.matrices
        for expert in (0, 2)
    )


def resident_bytes(cache: ExpertCache) -> int:
    """Resident bytes of the matrices' address ranges, page by page: the kernel's maps may join a
    range with its neighbour, such as a thread's stack."""
    total = 0
    for memory in (memory for ranges in cache._memory._ranges for memory in ranges):
        pages = (ctypes.c_ubyte * (memory.nbytes // mmap.PAGESIZE))()
        address, nbytes = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.nbytes)
        assert ctypes.CDLL(None).mincore(address, nbytes, pages) == 0
        total += mmap.PAGESIZE * sum(page & 1 for page in pages)
    return total


@pytest.mark.parametrize(
    "layers",
    [make_layers(4, 8), make_layers(4, 8, sizes=[3 * BLOCK_BYTES] * 2, begin=0)],
    ids=["neighbours share blocks", "slices are whole blocks"],
)
def test_memory_stays_within_the_capacity(
    opened: Callable[..., tuple], layers: list[ExpertLayer]
) -> None:
    """Pages, not only the cache's own books: what is dropped goes back to the system."""
    cache, _, _ = opened(layers, n_fitting=5)
    chance = random.Random(1)
    for _ in range(20):
        for layer in range(4):
            assert cache.acquire(layer, choice(chance.sample(range(8), 2)))
            assert resident_bytes(cache) <= cache.used_bytes
            cache.release(layer)
    assert cache.used_bytes > 4 * room_of(cache.layers)


def test_waiting_for_what_the_first_token_chose_is_counted(opened: Callable[..., tuple]) -> None:
    """Of four experts, three are read; it chose one of them."""
    cache, _, _ = opened(make_layers(1, 8), n_fitting=8)
    assert cache.acquire(0, choice([0])) and cache.complete(0)
    alone = cache.stall_s
    assert cache.first_row_stall_s == alone
    assert cache.acquire(0, np.array([[0, 1], [2, 3]])) and cache.complete(0)
    assert cache.first_row_stall_s - alone == pytest.approx((cache.stall_s - alone) / 3)


def test_a_prompt_of_which_the_last_layer_computes_no_token_chooses_nothing(
    opened: Callable[..., tuple],
) -> None:
    cache, _, _ = opened(make_layers(1, 4), n_fitting=2)
    assert cache.acquire(0, np.empty((0, 2), np.int32)) and cache.complete(0)
    assert cache.stats.misses == 0


def test_a_second_run_reads_what_most_tokens_chose_before_it_is_asked(
    opened: Callable[..., tuple],
) -> None:
    """As far as there is room, and never what no token chose."""
    layers = make_layers(2, 4)
    first, _, _ = opened(layers, n_fitting=8)
    for chosen in ([0, 2], [0, 3], [0, 2]):
        for layer in (0, 1):
            assert first.acquire(layer, choice(chosen))
            first.release(layer)
    second, _, _ = opened(layers, n_fitting=4)
    second.expect(first.shares)
    wait_until(lambda: second.used_bytes == 4 * room_of(layers))
    for layer in (0, 1):
        assert second.acquire(layer, choice([0, 2])) and second.complete(layer)
    assert (second.stats.hits, second.stats.misses) == (4, 0)


def test_what_was_expected_does_not_compete_with_a_pass(opened: Callable[..., tuple]) -> None:
    layers = make_layers(1, 8)
    cache, gate, _ = opened(layers, n_fitting=8)
    gate.open.clear()
    cache.expect([bytes([255] * 8)])
    timer = threading.Timer(0.05, gate.open.set)
    timer.start()
    assert cache.acquire(0, choice([6, 7])) and cache.complete(0)
    assert cache.used_bytes <= 3 * room_of(layers)
    timer.join()


@pytest.mark.parametrize("shares", [[], [b"12345"], [b"1234", b"1234"], [b"12345"] * 3])
def test_shares_of_another_model_are_ignored(
    opened: Callable[..., tuple], shares: list[bytes]
) -> None:
    cache, _, _ = opened(make_layers(2, 5), n_fitting=4)
    cache.expect(shares)
    assert cache.shares == [bytes(5), bytes(5)]


def test_experts_in_use_make_no_room_for_others(tmp_path: Path) -> None:
    """Though they were used longest ago."""
    layers = make_layers(2, 4)
    path = make_file(tmp_path, layers)
    rule = LeastRecent([4, 4])
    with ExpertCache(layers, DirectReader([path]), 4 * room_of(layers), rule) as cache:
        for layer, chosen in ((0, [0, 1]), (1, [0, 1])):
            assert cache.acquire(layer, choice(chosen)) and cache.complete(layer)
        cache.release(1)
        assert cache.acquire(1, choice([2, 3])) and cache.complete(1)
        for expert in (0, 1):
            assert slices(cache, 0, expert) == slices_in(path.read_bytes(), layers[0], expert)


def test_room_that_only_experts_in_use_could_make_is_waited_for(
    opened: Callable[..., tuple],
) -> None:
    cache, _, _ = opened(make_layers(2, 4), n_fitting=2)
    assert cache.acquire(0, choice([0, 1])) and cache.complete(0)
    timer = threading.Timer(0.05, cache.cancel)
    timer.start()
    assert not cache.acquire(1, choice([2, 3]))
    timer.join()


def test_a_failed_read_is_told_and_tried_again(opened: Callable[..., tuple]) -> None:
    cache, gate, content = opened(make_layers(1, 4), n_fitting=2)
    gate.failing = True
    with pytest.raises(WeightReadError, match="fire"):
        assert cache.acquire(0, choice([1, 2])) and cache.complete(0)
    gate.failing = False
    assert cache.acquire(0, choice([1, 2])) and cache.complete(0)
    assert slices(cache, 0, 2) == slices_in(content, cache.layers[0], 2)


def test_what_failed_for_an_earlier_pass_is_tried_again(opened: Callable[..., tuple]) -> None:
    """One expert's failure is told while another's is still to come."""
    cache, gate, content = opened(make_layers(1, 4), n_fitting=4)
    late = {matrix.run(3).start for matrix in cache.layers[0].matrices}
    gate.waiting = lambda run: run.start in late
    gate.failing = True
    gate.open.clear()
    with pytest.raises(WeightReadError, match="fire"):
        cache.acquire(0, choice([0, 3]))
    cache.release(0)
    gate.open.set()
    while cache._n_reading or cache._queue:
        time.sleep(0.001)
    gate.failing = False
    for expert in (0, 3):
        assert cache.acquire(0, choice([expert])) and cache.complete(0)
        assert slices(cache, 0, expert) == slices_in(content, cache.layers[0], expert)
        cache.release(0)


def test_cancelling_wakes_who_waits(opened: Callable[..., tuple]) -> None:
    cache, gate, content = opened(make_layers(1, 4), n_fitting=2)
    gate.open.clear()
    timer = threading.Timer(0.05, cache.cancel)
    timer.start()
    assert not cache.acquire(0, choice([0, 1]))
    gate.open.set()
    cache.resume()
    assert cache.acquire(0, choice([2, 3])) and cache.complete(0)
    assert slices(cache, 0, 3) == slices_in(content, cache.layers[0], 3)


def test_a_trace_shows_when_experts_are_read(tmp_path: Path) -> None:
    layers = make_layers(2, 4)
    reader = DirectReader([make_file(tmp_path, layers)])
    trace, file = trace_in_memory()
    with trace, ExpertCache(layers, reader, 8 * room_of(layers), trace=trace) as cache:
        for layer in (0, 1):
            assert cache.acquire(layer, choice([0, 2])) and cache.complete(layer)
            cache.release(layer)
        nbytes = cache.bytes_read
    reads = spans(read(file.content), "read experts", Track.EXPERTS)
    assert sum(event["args"]["bytes"] for event in reads) == nbytes


def test_more_experts_than_fit_are_refused(opened: Callable[..., tuple]) -> None:
    cache, _, _ = opened(make_layers(1, 4), n_fitting=3)
    with pytest.raises(EdgespecError, match="do not fit"):
        cache.acquire(0, choice([0, 1, 2, 3]))


def test_a_cache_below_what_a_token_chooses_in_any_layer_is_refused(
    opened: Callable[..., tuple],
) -> None:
    layers = [*make_layers(1, 4, n_used=1), *make_layers(1, 4, n_used=3)]
    with pytest.raises(EdgespecError, match="cannot hold the experts that a token"):
        opened(layers, n_fitting=2)


def test_closing_leaves_no_thread(opened: Callable[..., tuple]) -> None:
    cache, _, _ = opened(make_layers(1, 4), n_fitting=3)
    cache.acquire(0, choice([0, 1]))
    cache.close()
    cache.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("edgespec-experts")]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_rounds_bring_every_slice_once_whatever_is_there(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before, between and after choices that fit; neighbours stay whole."""
    n_fitting = data.draw(st.integers(2, 5))
    capacity = n_fitting * room_of(THREE_LAYERS)
    some = st.lists(st.integers(0, 5), min_size=1, max_size=6)
    with over_three_layers(tmp_path_factory, capacity) as (cache, content):
        for number in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8)):
            chosen, layer = data.draw(some), THREE_LAYERS[number]
            if data.draw(st.booleans()):
                chosen = chosen[:n_fitting]
                assert cache.acquire(number, choice(chosen)) and cache.complete(number)
                for expert in chosen:
                    assert slices(cache, number, expert) == slices_in(content, layer, expert)
                cache.release(number)
                continue
            cache.choose(number, choice(chosen))
            for matrix in (0, 1):
                seen, before = [], cache.bytes_read
                for group in cache.groups(number, matrix, choice(chosen)):
                    assert cache.used_bytes <= capacity
                    seen += group
                    for expert in group:
                        found = slice_in(cache, number, matrix, expert)
                        assert found == slices_in(content, layer, expert)[matrix]
                assert sorted(seen) == sorted(set(chosen))
                most_bytes = sum(layer.matrices[matrix].run(expert).nbytes for expert in seen)
                assert cache.bytes_read - before <= most_bytes
            assert resident_bytes(cache) <= capacity


def test_what_came_for_a_round_makes_room_again(opened: Callable[..., tuple]) -> None:
    layers = make_layers(2, 6)
    cache, _, _ = opened(layers, n_fitting=2)
    cache.choose(0, choice(range(6)))
    n_groups = len(list(cache.groups(0, 0, choice(range(6)))))
    assert 1 < n_groups <= 3
    assert cache.used_bytes == 0
    assert resident_bytes(cache) == 0


def test_rounds_end_when_they_are_cancelled(opened: Callable[..., tuple]) -> None:
    cache, gate, content = opened(make_layers(1, 6), n_fitting=2)
    gate.open.clear()
    cache.choose(0, choice(range(6)))
    cache.cancel()
    assert not list(cache.groups(0, 0, choice(range(6))))
    gate.open.set()
    cache.resume()
    for group in cache.groups(0, 0, choice(range(6))):
        for expert in group:
            expected = slices_in(content, cache.layers[0], expert)[0]
            assert slice_in(cache, 0, 0, expert) == expected


def test_what_a_cancelled_round_was_still_reading_makes_room_later(
    opened: Callable[..., tuple],
) -> None:
    cache, gate, _ = opened(make_layers(1, 6), n_fitting=2)
    gate.open.clear()
    cache.choose(0, choice(range(6)))
    canceller = threading.Timer(0.05, cache.cancel)
    canceller.start()
    assert not list(cache.groups(0, 0, choice(range(6))))
    gate.open.set()
    while cache._n_reading or cache._queue:
        time.sleep(0.001)
    cache.resume()
    alarm = threading.Timer(5.0, cache.cancel)
    alarm.start()
    assert cache.acquire(0, choice([4, 5])) and cache.complete(0)
    alarm.cancel()


def test_a_round_that_fails_is_tried_again(opened: Callable[..., tuple]) -> None:
    cache, gate, _ = opened(make_layers(1, 6), n_fitting=2)
    cache.choose(0, choice(range(6)))
    gate.failing = True
    with pytest.raises(WeightReadError, match="on fire"):
        list(cache.groups(0, 1, choice(range(6))))
    gate.failing = False
    seen = [expert for group in cache.groups(0, 1, choice(range(6))) for expert in group]
    assert sorted(seen) == list(range(6))
