"""Programs that a worker's call starts and waits for, and that end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from edgespec.concurrency.owning import POLL_S
from edgespec.concurrency.worker import raise_if_cancelled


def run_program(
    command: Sequence[str], timeout_s: float, env: Mapping[str, str], given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with bytes as its input, in a session of its own, and capture its output.

    It is killed when the timeout is over or the worker's call was cancelled. Raises OSError,
    subprocess.TimeoutExpired and Cancelled.
    """
    deadline_s = time.monotonic() + timeout_s
    # no pipe: `communicate` forgets the input when it is called again
    with TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        with subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        ) as process:
            prefer_to_kill(process.pid)
            try:
                out, err = _outputs(process, deadline_s)
            except BaseException:
                process.kill()
                raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


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


def _outputs(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[bytes, bytes]:
    while True:
        try:
            return process.communicate(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline_s:
                raise
        raise_if_cancelled()
