"""The process memory of a GPU's library is measured in another process, and cached."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgespec.memory.process import STEP_BYTES
from edgespec_runtimes.gguf.llama import gpu, trial_process
from edgespec_runtimes.gguf.llama.gpu import LibraryMemory
from gpu_stand_in import trial

MIB = 1 << 20


@pytest.fixture
def trials(own_cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[LibraryMemory]:
    """Results of the next trials, the last one first."""
    found: list[LibraryMemory] = []
    monkeypatch.setattr(gpu, "measure", lambda _: found.pop())
    return found


@pytest.mark.slow
def test_a_device_that_computes_makes_a_process_grow(rpc_server: str):
    measured = gpu.measure(trial(rpc_server))
    assert measured.nbytes is not None and measured.note is None
    assert measured.nbytes >= 0 and measured.nbytes % STEP_BYTES == 0


@pytest.mark.slow
def test_without_a_gpu_nothing_is_known():
    if gpu.find() is not None:
        pytest.skip("there is a GPU")
    command = trial_process.command("gpu")
    assert gpu.measure(command) == LibraryMemory(None, "exit code 3")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "native code crashed, SIGSEGV"),
        ("print('12 bytes')", "exit code 0"),
    ],
)
def test_how_a_trial_fails_is_said(code: str, why: str):
    measured = gpu.measure([sys.executable, "-c", code])
    assert measured.nbytes is None
    assert measured.note is not None and why in measured.note


def test_a_trial_that_cannot_start_says_nothing():
    assert gpu.measure(["/nonexistent/python"]).nbytes is None


def test_a_trial_that_hangs_is_ended():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert gpu.measure(command, timeout_s=0.1).nbytes is None


def test_what_was_measured_is_remembered(trials: list[LibraryMemory]):
    trials.append(LibraryMemory(40 * MIB))
    assert [gpu.library_memory() for _ in range(3)] == [LibraryMemory(40 * MIB)] * 3


def test_what_was_not_measured_is_tried_again(trials: list[LibraryMemory]):
    trials += [LibraryMemory(40 * MIB), LibraryMemory(None, "it failed")]
    assert gpu.library_memory() == LibraryMemory(None, "it failed")
    assert gpu.library_memory() == LibraryMemory(40 * MIB)


def test_another_driver_is_measured_anew(
    trials: list[LibraryMemory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trials += [LibraryMemory(60 * MIB), LibraryMemory(40 * MIB)]
    driver = tmp_path / "version"
    monkeypatch.setattr(gpu, "_DRIVERS", (driver,))
    assert gpu.library_memory() == LibraryMemory(40 * MIB)
    driver.write_text("570")
    assert gpu.library_memory() == LibraryMemory(60 * MIB)


def test_a_damaged_answer_is_asked_for_again(trials: list[LibraryMemory], own_cache_folder: Path):
    trials += [LibraryMemory(60 * MIB), LibraryMemory(40 * MIB)]
    gpu.library_memory()
    (kept,) = (own_cache_folder / "llama.cpp").iterdir()
    kept.write_text('"many"')
    assert gpu.library_memory() == LibraryMemory(60 * MIB)


def test_an_application_without_an_interpreter_is_not_started(
    trials: list[LibraryMemory], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", "/opt/app/blender")
    assert gpu.library_memory().nbytes is None
