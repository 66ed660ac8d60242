"""A program that a worker's call waits for ends with the call."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from edgespec.concurrency.program import run_program
from edgespec.concurrency.worker import Worker, raise_if_cancelled
from edgespec.errors import Cancelled

SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]
ECHOING = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)"]


def test_output_and_exit_code_come_back() -> None:
    given = b"a line\n" * 100_000
    done = run_program(ECHOING, 60, os.environ, given)
    assert (done.returncode, done.stdout, done.stderr) == (3, given, b"")


def test_a_program_that_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(SLEEPING, 0.2, os.environ)
    assert time.monotonic() - began < 30


def test_a_cancelled_call_kills_its_program() -> None:
    """Ctrl-C while a plan was made waited for trials of the libraries, up to minutes."""
    began = time.monotonic()
    ended: list[BaseException] = []

    def call() -> None:
        try:
            run_program(SLEEPING, 60, os.environ)
        except BaseException as error:
            ended.append(error)
            raise

    def interrupted() -> None:
        if time.monotonic() - began > 0.3:
            raise KeyboardInterrupt

    with Worker() as worker, pytest.raises(KeyboardInterrupt):
        worker.run(call, lambda: None, interrupted)
    assert isinstance(ended[0], Cancelled)
    assert time.monotonic() - began < 30


def test_the_next_call_of_a_worker_is_not_cancelled() -> None:
    def call() -> None:
        while True:
            raise_if_cancelled()
            time.sleep(0.01)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with Worker() as worker:
        with pytest.raises(KeyboardInterrupt):
            worker.run(call, lambda: None, interrupted)
        assert worker.run(lambda: raise_if_cancelled() or 7, lambda: None) == 7


def test_nothing_is_cancelled_outside_of_a_worker() -> None:
    raise_if_cancelled()
