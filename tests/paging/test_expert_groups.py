"""More experts chosen than fit at once: they are read and computed in groups."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import WeightReadError
from expert_files import (
    THREE_LAYERS,
    choice,
    make_layers,
    over_three_layers,
    resident_bytes,
    room_of,
    slice_in,
    slices,
    slices_in,
    wait_until,
)


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
    assert resident_bytes(cache) <= 2 * room_of(layers)


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
    reads = cache._reads
    wait_until(lambda: not (reads._n_reading or reads._queue))
    cache.resume()
    alarm = threading.Timer(5.0, cache.cancel)
    alarm.start()
    assert cache.acquire(0, choice([4, 5])) and cache.complete(0)
    alarm.cancel()


def test_a_round_that_fails_is_tried_again(opened: Callable[..., tuple]) -> None:
    cache, gate, _ = opened(make_layers(1, 6), n_fitting=2)
    cache.choose(0, choice(range(6)))
    gate.failing = True
    with pytest.raises(WeightReadError):
        list(cache.groups(0, 1, choice(range(6))))
    gate.failing = False
    seen = [expert for group in cache.groups(0, 1, choice(range(6))) for expert in group]
    assert sorted(seen) == list(range(6))
