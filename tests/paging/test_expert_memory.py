"""Memory of experts: places of their own, within the capacity."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.paging.expert_cache import ExpertCache
from edgespec.paging.expert_layers import ExpertMatrix
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Extent
from expert_files import choice, make_file, make_layers, resident_bytes, room_of, slices, slices_in

N_EXPERTS = 8


@given(
    slice_bytes=st.integers(BLOCK_BYTES, 5 * BLOCK_BYTES), offset=st.integers(0, 3 * BLOCK_BYTES)
)
def test_every_slice_has_blocks_of_its_own_where_direct_reads_can_put_it(
    slice_bytes: int, offset: int
) -> None:
    matrix = ExpertMatrix(Extent(0, offset, N_EXPERTS * slice_bytes), N_EXPERTS)
    first = offset % BLOCK_BYTES
    for expert in range(N_EXPERTS):
        begin = first + expert * matrix.stride_bytes
        place, run = matrix.place(expert), matrix.run(expert)
        assert begin - place == offset + expert * slice_bytes - run.start
        assert run.nbytes <= matrix.room_bytes
        assert place + matrix.room_bytes <= matrix.place(expert + 1)


@pytest.mark.costly
def test_memory_stays_within_the_capacity_whatever_the_sizes_of_slices(tmp_path: Path) -> None:
    small, large = make_layers(2, N_EXPERTS), make_layers(4, N_EXPERTS, sizes=[7 * BLOCK_BYTES] * 2)
    layers = [*small, *large[2:]]
    path = make_file(tmp_path, layers)
    capacity = 4 * room_of(layers)
    content, chance = path.read_bytes(), random.Random(3)
    with ExpertCache(layers, DirectReader([path]), capacity) as cache:
        for _ in range(30):
            for number, layer in enumerate(layers):
                chosen = chance.sample(range(N_EXPERTS), 2)
                assert cache.acquire(number, choice(chosen)) and cache.complete(number)
                assert resident_bytes(cache) <= capacity
                for expert in chosen:
                    assert slices(cache, number, expert) == slices_in(content, layer, expert)
                cache.release(number)


@pytest.mark.costly
def test_an_expert_chosen_again_after_a_cancelled_pass_is_whole(
    opened: Callable[..., tuple],
) -> None:
    """A cancelled pass leaves reads in the queue, for which experts of the next were evicted."""
    layers = make_layers(2, N_EXPERTS)
    cache, gate, content = opened(layers, n_fitting=4)
    chance = random.Random(5)
    for _ in range(40):
        gate.open.clear()
        for number in chance.sample([0, 1], 2):
            cancelling = threading.Timer(0.002, cache.cancel)
            cancelling.start()
            cache.acquire(number, choice(chance.sample(range(N_EXPERTS), 2)))
            cancelling.join()
            cache.release(number)
            cache.resume()
        gate.open.set()
        chosen = chance.sample(range(N_EXPERTS), 2)
        assert cache.acquire(0, choice(chosen)) and cache.complete(0)
        for expert in chosen:
            assert slices(cache, 0, expert) == slices_in(content, layers[0], expert)
        cache.release(0)
