"""Bytes that threads reserve in the order in which they asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.concurrency.byte_pool import BytePool
from session_cases import until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def never() -> None:
    """Raises nothing."""


def test_who_asks_for_little_does_not_pass_who_asked_for_much(threads: ThreadPoolExecutor) -> None:
    pool, order, may_end = BytePool(16), [], threading.Event()

    def take(n_bytes: int) -> None:
        with pool.reserved(n_bytes, never):
            order.append(n_bytes)
            may_end.wait(60)

    with pool.reserved(8, never):
        asked = []
        for n_waiting, n_bytes in enumerate((16, 4, 3), 1):
            asked.append(threads.submit(take, n_bytes))
            until(lambda n=n_waiting: len(pool._line) == n)
        assert order == []
    until(lambda: order == [16])
    may_end.set()
    for each in asked:
        each.result(timeout=60)
    assert order[1:] in ([4, 3], [3, 4])
    assert pool._free_bytes == 16


def test_who_gives_up_leaves_the_line(threads: ThreadPoolExecutor) -> None:
    pool, is_cancelled = BytePool(8), threading.Event()

    def check() -> None:
        if is_cancelled.is_set():
            raise TimeoutError

    def take() -> None:
        with pool.reserved(8, check):
            pytest.fail("there is nothing left")

    with pool.reserved(8, never):
        waiting = threads.submit(take)
        until(lambda: len(pool._line) == 1)
        is_cancelled.set()
        with pytest.raises(TimeoutError):
            waiting.result(timeout=60)
    assert (pool._line, pool._free_bytes) == ([], 8)
