"""A process that may die of it finds out if llama.cpp's packed products work."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.commands.plan_report import plan_report
from edgespec.errors import EdgespecError
from edgespec.models.embedded import embedded_pair
from edgespec.runtimes import ModelRequest
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf.entry import GgufRuntime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import cpu, loading, log, trial_process
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.cpu import (
    LibraryFiles,
    PackingDecision,
    TrialOutcome,
    TrialResult,
)
from edgespec_runtimes.gguf.llama.quantiser import quantise
from edgespec_runtimes.gguf.weights.packing import placement_as_stored, resident_weights

PAIR = embedded_pair()
AMX = "CPU : AVX512 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 1 | REPACK = 1 | "
NO_AMX = "CPU : NEON = 1 | REPACK = 1 | "
BROKEN = PackingDecision(allowed=False, found="it fails", advice="build it anew")


def child(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, time; say = lambda text: os.write(1, text); {code}"]


def dying_of(name: str) -> str:
    return f"os.kill(os.getpid(), {int(getattr(signal, name))})"


ENDS = {
    f"say({cpu.PLAIN + cpu.PACKED!r})": TrialResult(TrialOutcome.WORKS),
    f"say({cpu.PLAIN!r}); {dying_of('SIGSEGV')}": TrialResult(
        TrialOutcome.PACKING_FAILS, "SIGSEGV"
    ),
    f"say({cpu.PLAIN!r}); {dying_of('SIGILL')}": TrialResult(TrialOutcome.PACKING_FAILS, "SIGILL"),
    f"say({cpu.PLAIN!r}); os._exit({cpu.WRONG})": TrialResult(
        TrialOutcome.PACKING_FAILS, "wrong numbers"
    ),
    dying_of("SIGILL"): TrialResult(TrialOutcome.ILLEGAL, "SIGILL"),
    # what says nothing of the library
    dying_of("SIGKILL"): TrialResult(TrialOutcome.UNKNOWN, "it ended with exit code -9"),
    "raise ImportError": TrialResult(TrialOutcome.UNKNOWN, "it ended with exit code 1"),
    "pass": TrialResult(TrialOutcome.UNKNOWN, "it ended with exit code 0"),
}


@pytest.mark.parametrize(("code", "trial"), ENDS.items())
def test_how_a_trial_ends_says_what_works(code: str, trial: TrialResult):
    assert cpu.run_trial(child(code)) == trial


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    trial = cpu.run_trial(child("time.sleep(600)"), timeout_s=0.1)
    assert trial.outcome is TrialOutcome.UNKNOWN
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_trial_that_cannot_start_says_nothing():
    assert cpu.run_trial(["/nonexistent/python"]).outcome is TrialOutcome.UNKNOWN


def test_an_application_that_ignores_its_children_is_not_told_that_all_is_well():
    """`subprocess` then takes every child for one that ended with 0."""
    code = f"say({cpu.PLAIN!r}); {dying_of('SIGSEGV')}"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert cpu.run_trial(child(code)).outcome is TrialOutcome.UNKNOWN
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("system_info", "outcome", "allowed"),
    [
        (AMX, TrialOutcome.WORKS, True),
        (AMX, TrialOutcome.PACKING_FAILS, False),
        (AMX, TrialOutcome.UNKNOWN, False),
        (NO_AMX, TrialOutcome.WORKS, True),
        (NO_AMX, TrialOutcome.PACKING_FAILS, False),
        (NO_AMX, TrialOutcome.UNKNOWN, True),
    ],
)
def test_weights_are_packed_where_it_works_and_with_amx_only_if_that_was_seen(
    system_info: str, outcome: TrialOutcome, allowed: bool
):
    packing = cpu.decide_packing(system_info, TrialResult(outcome, "SIGSEGV"), "1.2.3")
    assert packing.allowed == allowed == (packing.note is None)


def test_the_note_says_what_was_seen_and_how_to_build_without_it():
    packing = cpu.decide_packing(AMX, TrialResult(TrialOutcome.PACKING_FAILS, "SIGSEGV"), "1.2.3")
    assert packing.note is not None
    for words in ("AMX", "SIGSEGV", "-mno-amx-int8", "--no-cache-dir", "llama-cpp-python==1.2.3"):
        assert words in packing.note


def test_a_build_for_another_processor_is_refused_before_it_computes():
    with pytest.raises(EdgespecError, match=r"another processor.*pip install"):
        cpu.check_usable(TrialResult(TrialOutcome.ILLEGAL, "SIGILL"), "1.2.3")


class CountedTrial:
    """Stands for `run_trial` and counts."""

    def __init__(self, outcome: TrialOutcome) -> None:
        self.outcome, self.times = outcome, 0

    def __call__(self, command: list[str]) -> TrialResult:
        self.times += 1
        return TrialResult(self.outcome)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibraryFiles:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("base", "cpu"):
        (tmp_path / name).write_bytes(b"code")
    return LibraryFiles("1.2.3", tmp_path / "base", tmp_path / "cpu")


def counted(
    monkeypatch: pytest.MonkeyPatch, outcome: TrialOutcome = TrialOutcome.WORKS
) -> CountedTrial:
    stand_in = CountedTrial(outcome)
    monkeypatch.setattr(cpu, "run_trial", stand_in)
    return stand_in


@pytest.mark.parametrize(
    "outcome", [TrialOutcome.WORKS, TrialOutcome.PACKING_FAILS, TrialOutcome.ILLEGAL]
)
def test_a_library_is_tried_once(
    outcome: TrialOutcome, library: LibraryFiles, monkeypatch: pytest.MonkeyPatch
):
    run_trial = counted(monkeypatch, outcome)
    assert [cpu.trial_result(library).outcome for _ in range(3)] == [outcome] * 3
    assert run_trial.times == 1


def test_what_a_trial_did_not_show_is_tried_again(
    library: LibraryFiles, monkeypatch: pytest.MonkeyPatch
):
    run_trial = counted(monkeypatch, TrialOutcome.UNKNOWN)
    cpu.trial_result(library)
    cpu.trial_result(library)
    assert run_trial.times == 2


def test_another_build_or_version_is_tried_anew(
    library: LibraryFiles, monkeypatch: pytest.MonkeyPatch
):
    run_trial = counted(monkeypatch)
    cpu.trial_result(library)
    library.cpu.write_bytes(b"other code")
    cpu.trial_result(library)
    cpu.trial_result(LibraryFiles("1.2.4", library.base, library.cpu))
    assert run_trial.times == 3


def test_a_cache_that_cannot_be_written_costs_a_trial_each_time(
    library: LibraryFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").write_bytes(b"a file, no folder")
    run_trial = counted(monkeypatch)
    assert [cpu.trial_result(library).outcome for _ in range(2)] == [TrialOutcome.WORKS] * 2
    assert run_trial.times == 2


@pytest.mark.parametrize("content", [b"", b"[]", b'{"outcome": "perhaps", "why": ""}', b"\xff"])
def test_a_damaged_answer_is_asked_for_again(
    content: bytes, library: LibraryFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_trial = counted(monkeypatch)
    cpu.trial_result(library)
    (kept,) = (tmp_path / "cache/edgespec/llama.cpp").iterdir()
    kept.write_bytes(content)
    assert cpu.trial_result(library).outcome is TrialOutcome.WORKS
    assert run_trial.times == 2


@pytest.mark.parametrize("executable", [None, "", "/usr/bin/uwsgi", "/opt/app/blender"])
def test_an_application_without_an_interpreter_of_its_own_is_not_started(
    executable: str | None, library: LibraryFiles, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", executable)
    run_trial = counted(monkeypatch)
    assert cpu.trial_result(library).outcome is TrialOutcome.UNKNOWN
    assert run_trial.times == 0


def test_a_frozen_application_is_not_started(
    library: LibraryFiles, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    run_trial = counted(monkeypatch)
    assert cpu.trial_result(library).outcome is TrialOutcome.UNKNOWN
    assert run_trial.times == 0


@pytest.mark.slow
def test_the_installed_library_shows_whether_its_packed_products_work():
    """The trial's parent survives if they do not."""
    trial = cpu.run_trial(trial_process.command("cpu"))
    assert trial.outcome in {TrialOutcome.WORKS, TrialOutcome.PACKING_FAILS}
    assert loading.packing().allowed == (trial.outcome is TrialOutcome.WORKS)


def request(path: Path, owner: str, budget_bytes: int | None = None) -> ModelRequest:
    return ModelRequest(path, owner, 64, 4, 2, 1, budget_bytes=budget_bytes)


@pytest.mark.parametrize("owner", ["draft", "target"])
def test_a_model_that_may_stay_in_memory_notes_that_it_is_not_packed(
    owner: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "packing", lambda: BROKEN)
    assert GgufRuntime().prepare(request(PAIR.draft, owner)).notes() == [BROKEN.note]


def test_a_target_that_must_be_paged_has_nothing_to_say_of_packing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(loading, "packing", lambda: BROKEN)
    assert not GgufRuntime().prepare(request(PAIR.target, "target", 1 << 20)).notes()


def buffers(path: Path) -> dict[str, float]:
    """MiB by the kind of buffer of a resident model."""
    with log.captured() as lines:
        as_stored = placement_as_stored(read_header(path))
        loading.load_resident(path, loading.NOWHERE, AbortFlag(), None, as_stored).close()
    found = re.findall(r"(\w+) model buffer size = +([\d.]+) MiB", "".join(lines))
    return {name: float(mib) for name, mib in found}


def test_weights_stay_out_of_packing_buffers_where_those_do_not_work(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(loading, "packing", lambda: BROKEN)
    assert set(buffers(PAIR.target)) == {"CPU"}


@pytest.mark.slow
@pytest.mark.parametrize("packs", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["Q4_0", *(pytest.param(k, marks=pytest.mark.slow) for k in ("Q8_0", "Q4_K_M"))]
)
def test_resident_weights_take_what_the_plan_says(
    kind: str, packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not packs:
        monkeypatch.setattr(loading, "packing", lambda: BROKEN)
    elif not loading.packing().allowed:
        pytest.skip("this build of llama.cpp cannot pack weights here")
    path = tmp_path / "model.gguf"
    quantise(PAIR.target, path, kind)
    planned = resident_weights(read_header(path))
    assert planned.weights / 2**20 == pytest.approx(sum(buffers(path).values()), abs=0.05)
    assert (planned.loading > 0) == ("CPU_REPACK" in buffers(path))


@pytest.mark.parametrize("packing", [BROKEN, PackingDecision(allowed=True)])
def test_the_doctor_says_whether_weights_are_packed(
    packing: PackingDecision, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "packing", lambda: packing)
    (finding,) = [found for found in GgufRuntime().diagnose() if "pack" in found.what]
    assert (finding.level == "fine") == packing.allowed
    assert finding.advice == packing.advice


def test_the_doctor_says_that_a_build_is_for_another_processor(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> PackingDecision:
        cpu.check_usable(TrialResult(TrialOutcome.ILLEGAL, "SIGILL"), "1.2.3")
        raise AssertionError

    monkeypatch.setattr(loading, "packing", refuse)
    (finding,) = GgufRuntime().diagnose()
    assert finding.level == "problem" and "another processor" in finding.says


def test_the_plan_says_that_weights_are_not_packed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "packing", lambda: BROKEN)
    planned = session.plan(LoadSettings(model=PAIR.target, draft=PAIR.draft))
    assert BROKEN.note in planned.notes
    assert BROKEN.note in plan_report(planned).lines()
