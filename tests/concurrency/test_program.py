"""A program that a worker's call waits for ends with the call."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from edgespec.concurrency.program import run_program
from edgespec.concurrency.worker import Worker
from edgespec.errors import Cancelled

SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_program_that_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(SLEEPING, 0.2, os.environ)
    assert time.monotonic() - began < 30


def test_a_program_that_takes_long_is_given_its_input_once() -> None:
    code = "import sys, time; time.sleep(0.3); print(sys.stdin.read() * 2, end='')"
    assert run_program([sys.executable, "-c", code], 60, os.environ, b"ab") == b"abab"


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
