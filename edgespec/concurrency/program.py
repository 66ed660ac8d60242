"""Programs that a worker's call starts and waits for, and that end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.concurrency.owning import POLL_S
from edgespec.concurrency.worker import raise_if_cancelled


def run_program(
    command: Sequence[str], timeout_s: float, env: Mapping[str, str], given: bytes | None = None
) -> bytes:
    """The output of a program with bytes as its input, in a session of its own.

    It is killed when the timeout is over or the worker's call was cancelled. Raises OSError,
    subprocess.SubprocessError and Cancelled.
    """
    deadline_s, out = time.monotonic() + timeout_s, None
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    ) as process:
        prefer_to_kill(process.pid)
        try:
            while out is None:
                raise_if_cancelled()
                if time.monotonic() > deadline_s:
                    raise subprocess.TimeoutExpired(command, timeout_s)
                try:
                    out, _ = process.communicate(given, POLL_S)
                except subprocess.TimeoutExpired:
                    given = None  # it is sent once
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return out


def prefer_to_kill(pid: int) -> None:
    """Let Linux kill a process, and those that it starts, before any other where memory is short,
    so that the one that waits for it lives to say so."""
    if sys.platform == "linux":
        with suppress(OSError):  # it may have ended
            Path(f"/proc/{pid}/oom_score_adj").write_bytes(b"1000")


def kill_started_by(pid: int) -> None:
    """Kill the processes that a process has started, and those that they have."""
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
