"""Jobs and answers as JSON, and the process that turns one into the other."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bench_rows import row
from edgespec.bench.runs import (
    CHILD,
    MESSAGES,
    Decode,
    RawRead,
    ReadRaw,
    Survey,
)
from edgespec.jobs import launching
from edgespec.jobs.launching import launch
from edgespec.jobs.limits import Limiter
from edgespec.jobs.messages import Failed
from edgespec.values import TextCost


def test_jobs_and_answers_survive_their_json():
    decode = Decode("auto", Path("m"), None, ("grüße",), 4, 512, 2, 1 << 30)
    survey = Survey(Path("m"), Path("d"), 512, 2, None)
    failed = Failed("too small", "BudgetError", 77)
    together = Decode("auto", Path("m"), None, ("grüße", "b"), 4, 512, 2, None, together=True)
    texts = replace(row("auto", 1.0).decoded, texts=(TextCost(3, 0.5),), n_passes=2)
    for value in (
        decode,
        together,
        texts,
        survey,
        ReadRaw(Path("m"), 9),
        failed,
        row("auto", 1.0).decoded,
    ):
        assert MESSAGES.from_json(MESSAGES.to_json(value)) == value


@pytest.mark.parametrize("line", [b"", b"3", b'{"kind": "Path", "body": {}}'])
def test_what_is_neither_is_refused(line: bytes):
    with pytest.raises(ValueError, match=r"^"):
        MESSAGES.from_json(line)


def test_a_process_reads_a_file_until_it_has_read_enough(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(bytes(3_000_001))
    launched = launch(ReadRaw(path, 3_000_002), CHILD, cold=[path])
    assert isinstance(launched.answer, RawRead)
    assert launched.answer.nbytes == 6_000_002
    assert 0 <= launched.others <= 1


def test_an_error_of_the_process_is_its_answer(tmp_path: Path):
    answer = launch(ReadRaw(tmp_path / "none", 1), CHILD).answer
    assert isinstance(answer, Failed)
    assert "No such file" in answer.message


def limiter_of(*words: str) -> Limiter:
    return Limiter("test", lambda: nullcontext(list(words)))


def test_a_process_that_is_killed_says_that_memory_may_be_short(tmp_path: Path):
    answer = launch(ReadRaw(tmp_path, 1), CHILD, limiter_of("sh", "-c", "kill -9 $$")).answer
    assert isinstance(answer, Failed)
    assert "where memory is short" in answer.message


@pytest.mark.parametrize("ends", ["kill -SEGV $$", "exit 139"])
def test_a_process_that_crashes_says_by_what(ends: str, tmp_path: Path):
    """A shell or systemd-run in between tells the signal in its exit code."""
    answer = launch(ReadRaw(tmp_path, 1), CHILD, limiter_of("sh", "-c", ends)).answer
    assert isinstance(answer, Failed)
    assert "SIGSEGV" in answer.message and "pip install" in answer.message


def test_a_process_that_fails_shows_its_last_words(tmp_path: Path):
    words = limiter_of("sh", "-c", "echo oh >&2; echo no >&2; exit 3")
    answer = launch(ReadRaw(tmp_path, 1), CHILD, words).answer
    assert answer == Failed("the process ended before it was done (exit code 3: no)")


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
            launch(ReadRaw(tmp_path, 1), CHILD, Limiter("test", ProcessLimits))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert left == ["removed"]


def test_ctrl_c_while_a_process_is_started_is_heard_afterwards():
    """It was lost: a Ctrl-C in these milliseconds changed nothing."""
    done = False

    def start() -> None:
        nonlocal done
        with launching.deferring():
            signal.raise_signal(signal.SIGINT)
            done = True

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done


def test_the_page_cache_can_be_told_to_forget_a_file(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    launching.drop_cache(path)
    assert path.read_bytes() == b"x" * 4096
