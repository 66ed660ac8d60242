"""The fair lock: one thread at a time, in the order of asking."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from edgespec.concurrency.queueing import FairLock


def test_threads_get_it_in_their_order() -> None:
    lock, seen = FairLock(), list[int]()

    def take(n: int) -> None:
        with lock:
            seen.append(n)

    with ThreadPoolExecutor(5) as pool, lock:
        for n in range(5):
            pool.submit(take, n)
            while len(lock._line) < n + 2:
                time.sleep(0.0005)
    assert seen == list(range(5))


def test_a_thread_that_comes_back_goes_to_the_end_of_the_line() -> None:
    lock, seen, is_waiting = FairLock(), list[str](), threading.Event()

    def other() -> None:
        is_waiting.set()
        with lock:
            seen.append("other")

    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        is_waiting.wait()
        while len(lock._line) < 2:
            time.sleep(0.0005)
    with lock:
        seen.append("again")
    thread.join()
    assert seen == ["other", "again"]


def test_an_error_within_leaves_it_to_the_next() -> None:
    lock = FairLock()
    try:
        with lock:
            raise ValueError
    except ValueError:
        pass
    with lock:
        assert len(lock._line) == 1
