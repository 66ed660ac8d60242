"""The cache of experts: right bytes in their places, within its room, from any storage."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import WeightReadError
from edgespec.paging.expert_cache import ExpertCache
from edgespec.paging.expert_layers import ExpertLayer
from edgespec.paging.reader import BLOCK_BYTES, DirectReader
from expert_files import (
    THREE_LAYERS,
    choice,
    make_file,
    make_layers,
    over_three_layers,
    resident_bytes,
    room_of,
    slices,
    slices_in,
    wait_until,
)
from least_recent import LeastRecent


@pytest.mark.slow
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
            assert cache.acquire(layer, choice(chance.sample(range(8), 2))) and cache.complete(
                layer
            )
            assert resident_bytes(cache) <= cache.used_bytes
            cache.release(layer)
    assert cache.used_bytes > 4 * room_of(cache.layers)


def test_waiting_for_what_the_first_token_chose_is_counted(opened: Callable[..., tuple]) -> None:
    """Three of four experts are read; it chose one of them."""
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
    with pytest.raises(WeightReadError):
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
    with pytest.raises(WeightReadError):
        cache.acquire(0, choice([0, 3]))
    cache.release(0)
    gate.open.set()
    reads = cache._reads
    wait_until(lambda: not (reads._n_reading or reads._queue))
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


def test_closing_leaves_no_thread(opened: Callable[..., tuple]) -> None:
    cache, _, _ = opened(make_layers(1, 4), n_fitting=3)
    cache.acquire(0, choice([0, 1]))
    cache.close()
    cache.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("edgespec-experts")]
