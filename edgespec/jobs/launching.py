"""Runs a call in a fresh process with limits.

Afterwards, even after Ctrl-C, the process has ended and its limits are removed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import psutil

from edgespec.concurrency import own_processes
from edgespec.concurrency.program import kill_started_by, prefer_to_kill
from edgespec.errors import BudgetError, EdgespecError
from edgespec.jobs.limits import UNLIMITED, Limiter

T = TypeVar("T")

POLL_S = 0.05


def launch(
    job: Callable[[], T],
    limiter: Limiter = UNLIMITED,
    cold: Iterable[Path] = (),
    tick: Callable[[], None] = lambda: None,
) -> T:
    """Call `job`, a partial of a module's function, in a process of its own.

    Files in `cold` are first dropped from the page cache. `tick` is polled while the process runs.
    Raises the job's EdgespecError, BudgetError if the process is killed, and another EdgespecError
    if it dies otherwise.
    """
    for path in cold:
        drop_cache(path)
    with _closed_despite_signals() as cleanup:
        with deferring_signals():
            prefix = cleanup.enter_context(limiter.bind())
            # files, not pipes: a full pipe would block the process, as it is not read meanwhile
            job_file, out, err = (cleanup.enter_context(file()) for file in [TemporaryFile] * 3)
            job_file.write(pickle.dumps(job))
            job_file.seek(0)
            ours = own_processes.python("-m", "edgespec.jobs.job_process", str(os.getpid()))
            process = cleanup.enter_context(_started([*prefix, *ours], job_file, out, err))
        while process.poll() is None:
            tick()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        out.seek(0)
        err.seek(0)
        result, failure = _answer(process.returncode, out.read(), err.read())
    if failure is not None:
        raise failure
    answered: T = result
    return answered


def drop_cache(path: Path) -> None:
    """Drop a file from the page cache, if it exists and the OS can."""
    if sys.platform == "linux":
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _started(
    command: list[str], job_file: IO[bytes], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which Ctrl-C does not reach; it is killed at the end, with
    those that it has started."""
    process = subprocess.Popen(
        command, stdin=job_file, stdout=out, stderr=err, start_new_session=os.name == "posix"
    )
    prefer_to_kill(process.pid)
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(psutil.Error):
                psutil.Process(process.pid).suspend()  # so that it starts no more
            kill_started_by(process.pid)
        process.kill()
        process.wait()


def _answer(code: int, out: bytes, err: bytes) -> tuple[Any, EdgespecError | None]:
    """Result and error of a process, one of them None."""
    if code == 0:
        with suppress(Exception):  # the job itself may have written to stdout
            result, failure = pickle.loads(out)
            return result, failure
    lines = err.decode(errors="replace").strip().splitlines()
    why = own_processes.exit_reason(code, lines[-1] if lines else "")
    told = f"the process ended before it was done ({why})"
    if own_processes.signal_name(code) == "SIGKILL":
        return None, BudgetError(f"{told}: raise the memory limit of its container or cgroup")
    return None, EdgespecError(told)


@contextmanager
def _closed_despite_signals() -> Iterator[ExitStack]:
    """An ExitStack whose cleanup Ctrl-C cannot interrupt."""
    with ExitStack() as cleanup:
        try:
            yield cleanup
        finally:
            with deferring_signals():
                cleanup.close()


@contextmanager
def deferring_signals() -> Iterator[None]:
    """Defer signals that end the process to the end of the block; none is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number))
        for number in own_processes.ENDING_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])
