"""A terminal that is gone or a log that cannot be written, and what a command has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from edgespec.cli.commands.serve import log_request
from edgespec.cli.console import Console
from edgespec.server.front import AnsweredRequest

MEASURING = """
import sys, time
from functools import partial
from edgespec.cli.interrupts import Interrupts
from edgespec.jobs import launching

def tick():
    print("runs", flush=True)

try:
    with Interrupts().heard():
        launching.launch(partial(time.sleep, 60), tick=tick)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_job_ends_with_the_command_whose_terminal_is_gone() -> None:
    """It is in a session of its own, which SIGHUP does not reach: it ran on, with its limits."""
    command = [sys.executable, "-c", MEASURING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        [job] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not job.is_running() or job.status() == psutil.STATUS_ZOMBIE


INSISTING = """
import os, signal, time
from edgespec.cli.interrupts import Interrupts

os.close(2)
with Interrupts().heard():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
"""


def test_a_second_signal_ends_a_command_that_cannot_say_so() -> None:
    """Writing to a terminal that is gone failed, and the command went on."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", INSISTING], check=False, timeout=60)
    assert done.returncode == 130
    assert time.monotonic() - began < 30


@pytest.fixture
def full() -> Iterator[Console]:
    """A console whose stderr is a file on a full disk."""
    with Path("/dev/full").open("w", buffering=1) as stream:
        yield Console(stderr=stream)
        with suppress(OSError):
            stream.close()


@pytest.mark.parametrize("is_json", [False, True])
def test_a_log_on_a_full_disk_fails_no_request(full: Console, is_json: bool) -> None:
    """The connection was closed after each answer."""
    answered = AnsweredRequest("req_1", "", "GET", "/health", 200, 0.1, traceback="Traceback")
    log_request(full, is_json, False, answered)
