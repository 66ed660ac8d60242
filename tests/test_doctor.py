"""`edgespec doctor`: on any machine, without models and with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec import runtimes
from edgespec.cli import command_line
from edgespec.cli.commands import doctor
from edgespec.diagnosis import forecast, machine
from edgespec.errors import BudgetError, WeightReadError
from edgespec.files.json_file import JsonFile
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.pinning import SegmentSize
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings
from edgespec.tuning import trial
from edgespec.tuning.pair_figures import PairFigures
from edgespec_runtimes.gguf.options import GgufOptions

pytestmark = pytest.mark.usefixtures("own_cache_folder")

GIB = 1 << 30
ALONE = PairFigures(1.0, compute_s=0.0, rest_s=0.0, bytes_per_pass=0, expert_bytes=0)
"""Only reads take time."""
LAYERS = tuple(SegmentSize(f"layer {n}", GIB, GIB) for n in range(8))


def planned(budget_bytes: int, n_pinned: int) -> MemoryPlan:
    return MemoryPlan(budget_bytes, (), LAYERS, frozenset(range(n_pinned)), GIB, True, GIB)


def fake_plan(settings: LoadSettings) -> MemoryPlan:
    """A budget pins as many layers as it has GiB; a smaller cache leaves room for one more."""
    budget = int(settings.memory_budget)
    n_pinned = budget // GIB + (GgufOptions.of(settings.options.get("gguf")).cache_type_k == "q8_0")
    return planned(budget, n_pinned)


def settings(**more: object) -> LoadSettings:
    return LoadSettings.model_validate({"model": "big.gguf", "memory_budget": 4 * GIB} | more)


def test_it_runs_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(topic in shown for topic in ("processor", "memory", "storage", "libraries", "cache"))


def test_programs_get_findings_with_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["level"] for finding in findings} <= {"fine", "note", "problem"}


@pytest.mark.slow
def test_with_a_model_it_says_what_limits_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "N_TOKENS", 2)
    assert (
        command_line.main(["doctor", "-m", str(embedded_pair().target), "--memory-budget", "1GiB"])
        == 0
    )
    assert "computing limits the speed" in capsys.readouterr().out


@pytest.mark.costly
@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["-c", "-5"], 2, "--ctx-size -5"),
        (["--rpc", "localhost"], 2, "--rpc localhost"),
        (["--memory-budget", "9MiB", "--no-draft"], 4, "too small"),
        (["--config", "no-such-preset"], 2, "no-such-preset"),
    ],
)
def test_a_flag_of_models_is_not_ignored_without_a_name(
    flags: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It measures the pair that comes with edgespec, as the help says; only -m counted."""
    assert command_line.main(["doctor", *flags]) == code
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_pair_is_measured_in_a_process_within_its_budget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "own_bytes", lambda: 0)  # that of the tests is larger
    pair = embedded_pair()
    models = ["-m", str(pair.target), "-md", str(pair.draft), "-c", "256"]
    assert command_line.main(["doctor", *models, "--memory-budget", "200MiB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["pair"]
    assert told["predicted_tokens_per_s"] > 0 and told["measured_tokens_per_s"] > 0
    assert told["measured_peak_bytes"] <= 200 << 20


def test_what_helps_most_comes_first() -> None:
    found = forecast.forecast(settings(ctx_size=1024), fake_plan, GIB / 2, ALONE)
    assert found.tokens_per_s == pytest.approx(1 / 8)
    assert [one.change for one in found.speedups[:2]] == [
        "a disk twice as fast",
        "a draft that yields one token more per pass",
    ]
    memory = next(one for one in found.speedups if "GiB" in one.change)
    assert memory.tokens_per_s == pytest.approx(1 / 6)


def test_a_context_by_default_can_be_halved_too() -> None:
    def plan(changed: LoadSettings) -> MemoryPlan:
        smaller = changed.ctx_size == 2048
        return replace(planned(4 * GIB, 5 if smaller else 4), ctx_size=changed.ctx_size or 4096)

    found = forecast.forecast(settings(), plan, GIB, ALONE)
    assert any("--ctx-size 2048" in one.change for one in found.speedups)


def test_smaller_batches_are_proposed_with_what_they_may_change() -> None:
    def plan(changed: LoadSettings) -> MemoryPlan:
        return replace(planned(4 * GIB, 5 if changed.batch_size == 128 else 4), batch_size=512)

    found = forecast.forecast(settings(), plan, GIB, ALONE)
    (one,) = (one for one in found.speedups if "(-b 128)" in one.change)
    assert "can change the text" in one.change
    assert one.tokens_per_s == pytest.approx(1 / 3)


def test_a_change_that_cannot_be_planned_is_left_out() -> None:
    def plan(changed: LoadSettings) -> MemoryPlan:
        if changed.ctx_size == 2048:
            raise BudgetError("too small", GIB)
        return fake_plan(changed)

    found = forecast.forecast(settings(ctx_size=4096), plan, GIB / 2, ALONE)
    assert not any("context" in one.change for one in found.speedups)


def test_memory_that_holds_everything_leaves_computing_to_decide() -> None:
    def plan(changed: LoadSettings) -> MemoryPlan:
        return planned(0, 8) if int(changed.memory_budget) > 4 * GIB else planned(4 * GIB, 7)

    found = forecast.forecast(settings(), plan, GIB, ALONE)
    assert (found.speedups[0].change, found.speedups[0].tokens_per_s) == (
        "another GiB of memory",
        None,
    )


@pytest.mark.parametrize(
    ("disk_bytes_per_s", "helps_more"), [(GIB / 2, "disk"), (100 * GIB, "computing")]
)
def test_what_takes_the_time_is_what_helps_when_it_is_faster(
    disk_bytes_per_s: float, helps_more: str
) -> None:
    figures = PairFigures(4.0, compute_s=1.0, rest_s=0.0, bytes_per_pass=4 * GIB, expert_bytes=0)
    found = forecast.forecast(settings(), lambda _: planned(4 * GIB, 4), disk_bytes_per_s, figures)
    assert helps_more in found.speedups[0].change


def test_a_disk_that_cannot_be_read_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> float:
        raise WeightReadError("the disk is gone")

    monkeypatch.setattr(machine.disk_speed, "bytes_per_second", fail)
    storage = [finding for finding in machine.examine() if finding.topic == "storage"]
    assert [finding.level for finding in storage] == ["note"]
    assert "the disk is gone" in storage[0].says


def test_a_slow_disk_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.disk_speed, "bytes_per_second", lambda path: 90e6)
    storage = next(finding for finding in machine.examine() if finding.topic == "storage")
    assert storage.level == "note" and "90 MB/s" in storage.says and storage.advice


def test_a_runtime_that_is_missing_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "installed", lambda: iter(["install it with: pip install x"]))
    libraries = [finding for finding in machine.examine() if finding.topic == "libraries"]
    assert [(finding.level, finding.says) for finding in libraries] == [
        ("note", "install it with: pip install x")
    ]


def test_what_is_kept_of_experts_is_named(own_cache_folder: Path) -> None:
    file = JsonFile(own_cache_folder / "experts", "0123", max_files=2)
    file.write({"shares": []})
    cache = [finding for finding in machine.examine() if finding.topic == "cache"]
    assert any(str(file.path.parent) in finding.says for finding in cache)


def test_an_outdated_model_in_the_cache_is_named(own_cache_folder: Path) -> None:
    own_cache_folder.mkdir(parents=True)
    (own_cache_folder / "embedded-00000000-64MiB.gguf").write_bytes(b"")
    cache = [finding for finding in machine.examine() if finding.topic == "cache"]
    assert any("embedded-00000000-64MiB.gguf" in finding.says for finding in cache)
