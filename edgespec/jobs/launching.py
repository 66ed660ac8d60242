"""Runs a call in a fresh, bound process.

Whatever ends it, Ctrl-C too, the process is gone afterwards and what bound it is removed.
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
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Generic, TypeVar

import psutil

from edgespec.concurrency import exit_codes
from edgespec.errors import EdgespecError
from edgespec.jobs.limits import UNLIMITED, Limiter
from edgespec.jobs.other_work import OtherWork

T = TypeVar("T")

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Launched(Generic[T]):
    """The result of a job, and what went on meanwhile."""

    result: T
    others: float
    """Share of the cores that other processes took."""


def launch(
    job: Callable[[], T],
    limiter: Limiter = UNLIMITED,
    cold: Iterable[Path] = (),
    tick: Callable[[], None] = lambda: None,
) -> Launched[T]:
    """Call `job`, a partial of a module's function, in a process of its own.

    The page cache forgets the files in `cold` before. `tick` is called now and then meanwhile.
    Raises the job's own EdgespecError, and one for a process that dies or fails otherwise.
    """
    for path in cold:
        drop_cache(path)
    with _finishing() as cleanup:
        with deferring():
            prefix = cleanup.enter_context(limiter.bind())
            # files, not pipes: nobody reads meanwhile, and a full pipe would stop the process
            job_file, out, err = (cleanup.enter_context(file()) for file in [TemporaryFile] * 3)
            job_file.write(pickle.dumps(job))
            job_file.seek(0)
            command = [*prefix, sys.executable, "-m", "edgespec.jobs.child"]
            others = OtherWork()
            process = cleanup.enter_context(_started(command, job_file, out, err))
        share = others.share(_wait_for(process, tick))
        out.seek(0)
        err.seek(0)
        result, failure = _answer(process.returncode, out.read(), err.read())
    if failure is not None:
        raise failure
    return Launched(result, share)


def drop_cache(path: Path) -> None:
    """Let the page cache forget a file, if it is there and the OS has such a call."""
    if hasattr(os, "posix_fadvise"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _started(
    command: list[str], job_file: IO[bytes], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which Ctrl-C does not reach: it is ended here."""
    process = subprocess.Popen(
        command, stdin=job_file, stdout=out, stderr=err, start_new_session=os.name == "posix"
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> float:
    """Wait for its end; the seconds of processor time that it took, as far as they were seen."""
    computed_s = 0.0
    while process.poll() is None:
        tick()
        with suppress(psutil.Error):
            times = psutil.Process(process.pid).cpu_times()
            computed_s = times.user + times.system
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    return computed_s


def _answer(code: int, out: bytes, err: bytes) -> tuple[Any, EdgespecError | None]:
    """The result of a process, or its error."""
    if code == 0:
        with suppress(Exception):  # something else was written, which may be anything
            result, failure = pickle.loads(out)
            return result, failure
    lines = err.decode(errors="replace").strip().splitlines()
    why = exit_codes.exit_reason(code, lines[-1] if lines else "")
    return None, EdgespecError(f"the process ended before it was done ({why})")


@contextmanager
def _finishing() -> Iterator[ExitStack]:
    """An ExitStack that is closed even if Ctrl-C comes twice."""
    with ExitStack() as cleanup:
        try:
            yield cleanup
        finally:
            with deferring():
                cleanup.close()


@contextmanager
def deferring() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until what must be done as a whole is done; none is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number)) for number in _ENDING
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


_ENDING = (signal.SIGINT, signal.SIGTERM)
