"""`edgespec doctor`: on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec import registry
from edgespec.cli import command_line
from edgespec.diagnosis import machine
from edgespec.errors import WeightReadError

pytestmark = pytest.mark.usefixtures("own_cache_folder")


def test_it_runs_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(topic in shown for topic in ("processor", "memory", "storage", "libraries", "cache"))


def test_programs_get_findings_with_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["level"] for finding in findings} <= {"fine", "note", "problem"}


def test_the_disk_of_a_model_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(bytes(9 << 20))
    assert command_line.main(["doctor", "-m", str(model)]) == 0
    assert str(tmp_path) in capsys.readouterr().out


@pytest.mark.parametrize("error", [WeightReadError("gone"), OSError(30, "gone", "/tmp/tmphud")])
def test_a_disk_that_cannot_be_read_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(path: Path) -> float:
        raise error

    monkeypatch.setattr(machine.disk_speed, "bytes_per_second", fail)
    storage = [finding for finding in machine.examine() if finding.topic == "storage"]
    assert [finding.level for finding in storage] == ["note"]
    assert storage[0].says.endswith("not measured: gone")


def test_a_slow_disk_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.disk_speed, "bytes_per_second", lambda path: 90e6)
    storage = next(finding for finding in machine.examine() if finding.topic == "storage")
    assert storage.level == "note" and "90 MB/s" in storage.says and storage.advice


def test_a_runtime_that_is_missing_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed", lambda: iter(["install it with: pip install x"]))
    libraries = [finding for finding in machine.examine() if finding.topic == "libraries"]
    assert [(finding.level, finding.says) for finding in libraries] == [
        ("note", "install it with: pip install x")
    ]
