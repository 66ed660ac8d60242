"""The thread in which a model runs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from edgespec.concurrency.worker import Worker

LATER = """
import threading, time
from edgespec.concurrency.worker import Worker

def go_on():
    threading.main_thread().join()
    time.sleep(0.2)
    with Worker() as worker:
        print(worker.run(lambda: "done", lambda: None))

threading.Thread(target=go_on).start()
"""


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3),
    reason="these versions start no thread once the main one has ended (CPython 113964)",
)
def test_calls_are_made_where_the_main_thread_has_ended() -> None:
    """A program that leaves its work to a thread got "can't register atexit after shutdown"."""
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_process_waits_for_a_call_of_a_worker_that_nobody_closed() -> None:
    code = (
        "import time; from edgespec.concurrency.worker import Worker; worker = Worker(); "
        "worker.submit(lambda: (time.sleep(0.3), print('done')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_all_calls_are_made_in_one_thread_in_their_order() -> None:
    with Worker() as worker:
        futures = [worker.submit(threading.get_ident) for _ in range(3)]
        (thread,) = {future.result() for future in futures}
    assert thread != threading.get_ident()
    assert thread not in {found.ident for found in threading.enumerate()}


def test_an_error_is_raised_to_whoever_waits_and_the_next_call_is_made() -> None:
    with Worker() as worker:
        with pytest.raises(ZeroDivisionError):
            worker.run(lambda: 1 // 0, lambda: None)
        assert worker.run(lambda: 2, lambda: None) == 2


def test_a_closed_worker_takes_no_call() -> None:
    with Worker() as worker:
        worker.close()
    with pytest.raises(RuntimeError):
        worker.submit(lambda: None)


def test_a_worker_that_nobody_refers_to_ends_its_thread() -> None:
    worker = Worker()
    thread = worker.submit(threading.current_thread).result()
    del worker
    thread.join(10)
    assert not thread.is_alive()
