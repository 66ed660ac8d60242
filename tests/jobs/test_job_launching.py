"""Jobs in processes of their own, and how those end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest

from bench_rows import row
from edgespec.bench.child import raw_bytes_per_s, storage_reads
from edgespec.errors import BudgetError, EdgespecError
from edgespec.jobs import launching
from edgespec.jobs.launching import launch
from edgespec.jobs.limits import Limiter
from edgespec.ports.baselines import BaselineRequest
from edgespec.settings.config import LoadSettings
from sentences import refuses


def test_jobs_and_results_survive_the_way():
    load = LoadSettings(model=Path("m"), draft=Path("d"), memory_budget=1 << 30)
    request = BaselineRequest(Path("m"), None, "grüße", 4, 512, 2, storage_reads)
    values = [request, row("auto", 1.0).decoded, load]
    assert launch(partial(list, values)) == values


@pytest.mark.slow
def test_an_error_of_the_system_comes_back(tmp_path: Path):
    with refuses(EdgespecError):
        launch(partial(raw_bytes_per_s, tmp_path / "none"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told which to kill")
def test_the_kernel_kills_the_process_before_the_command_that_waits():
    wish = Path("/proc/self/oom_score_adj")
    assert launch(wish.read_text).strip() == "1000"
    assert wish.read_text().strip() != "1000"


def limiter_of(*words: str) -> Limiter:
    return Limiter("test", lambda: nullcontext(list(words)))


def test_a_process_that_is_killed_says_that_memory_may_be_short(tmp_path: Path):
    with refuses(BudgetError):
        launch(partial(raw_bytes_per_s, tmp_path), limiter_of("sh", "-c", "kill -KILL $$"))


@pytest.mark.parametrize("ends", ["kill -SEGV $$", "exit 139"])
def test_a_process_that_crashes_says_by_what(ends: str, tmp_path: Path):
    """A shell or systemd-run in between tells the signal in its exit code."""
    with refuses(EdgespecError):
        launch(partial(raw_bytes_per_s, tmp_path), limiter_of("sh", "-c", ends))


def test_ctrl_c_ends_the_process_and_removes_its_limits(tmp_path: Path):
    left: list[str] = []

    class ProcessLimits:
        def __enter__(self) -> list[str]:
            return ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"]

        def __exit__(self, *error: object) -> None:
            pid = int((tmp_path / "pid").read_text())
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            left.append("removed")

    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            launch(partial(raw_bytes_per_s, tmp_path), Limiter("test", ProcessLimits))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert left == ["removed"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_with_the_command_that_is_killed():
    """A trial of a `tune` that was killed went on for minutes, with all of its memory."""
    program = (
        "import time\n"
        "from functools import partial\n"
        "from edgespec.jobs.launching import launch\n"
        "launch(partial(time.sleep, 60))"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as command:
        started: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while not any("job_process" in " ".join(one.cmdline()) for one in started):
            assert time.monotonic() < deadline
            started = psutil.Process(command.pid).children()
            time.sleep(0.05)
        command.kill()
    deadline = time.monotonic() + 20
    while is_at_work(started[0].pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    is_left = is_at_work(started[0].pid)
    started[0].kill() if is_left else None
    assert not is_left


def is_at_work(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_while_a_process_is_started_is_heard_afterwards():
    """It was lost: a Ctrl-C in these milliseconds changed nothing."""
    done = False

    def start() -> None:
        nonlocal done
        with launching.deferring_signals():
            signal.raise_signal(signal.SIGINT)
            done = True

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done
