"""Runs trials of llama.cpp's libraries in separate processes.

Trials may crash, hang or take memory. Knows how to start and end a trial, not what it tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from edgespec.concurrency.interpreter import python
from edgespec.concurrency.program import run_program
from edgespec.errors import BudgetError, EdgespecError
from edgespec.memory import room

_PROGRAM = "edgespec_runtimes.gguf.trials"
TRIAL_BYTES = 30 << 20
"""Memory that a trial's process takes."""


class NoAnswer(Exception):
    """A trial could not be started, or did not end in time."""


def command(*arguments: str) -> list[str]:
    """The command that runs the trial program. Raises NoAnswer without a Python interpreter."""
    try:
        return python("-m", _PROGRAM, *arguments)
    except EdgespecError as error:
        raise NoAnswer(str(error)) from error


def run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a command and capture its output. Raises NoAnswer and Cancelled."""
    try:
        room.check(TRIAL_BYTES, "a trial beside this process")
    except BudgetError as error:  # the kernel might kill this process for it
        raise NoAnswer(str(error)) from error
    # otherwise a crash starts a debugger
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    try:
        return run_program(command, timeout_s, environment)
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"it had not ended after {timeout_s:.0f} s") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoAnswer(f"no process could be started: {error}") from error
