"""`--learn` and `models forget`: texts are kept by choice, shown by `doctor`, deleted at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.diagnosis import machine
from edgespec.engine.settings import EngineSettings
from edgespec.files.training_texts import TrainingTexts
from edgespec.models.embedded import embedded_pair
from edgespec.ports.findings import Finding
from edgespec.session import session
from edgespec.session.reserving import TEXTS_TO_LEARN
from edgespec.settings.config import LoadSettings
from fake_session import FakeSession

pytest.importorskip("llama_cpp")

PAIR = embedded_pair()


@pytest.fixture(autouse=True)
def learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "edgespec" / "learnt"


def told() -> list[Finding]:
    return [found for found in machine._cache() if found.what == "texts to learn from"]


@pytest.mark.slow
def test_a_text_is_kept_shown_and_forgotten(learnt: Path, capsys: pytest.CaptureFixture[str]):
    assert command_line.main(["generate", "-p", "def add(", "-n", "8", "--quiet"]) == 0
    assert not learnt.exists() and not told()
    assert command_line.main(["generate", "-p", "def add(", "-n", "8", "--quiet", "--learn"]) == 0
    (path,) = learnt.iterdir()
    head, text = map(json.loads, path.read_text().splitlines())
    assert head["target_path"] == str(PAIR.target) and len(text["tokens"]) == text["prompt"] + 8
    (finding,) = told()
    assert "models forget" in (finding.advice or "")
    capsys.readouterr()
    assert command_line.main(["models", "forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted_bytes"] > 0
    assert not TrainingTexts(learnt).nbytes and not told()
    assert command_line.main(["models", "forget"]) == 0
    assert "no texts are kept" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "batch"])
def test_the_help_says_that_texts_are_kept(command: str, capsys: pytest.CaptureFixture[str]):
    assert command_line.main([command, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--learn keep ALL TEXTS, prompts and answers" in said


def test_the_flag_reaches_the_engine(fake: FakeSession):
    assert command_line.main(["generate", "-p", "hi", "--learn"]) == 0
    assert fake.engine_settings.learn
    assert command_line.main(["generate", "-p", "hi"]) == 0
    assert not fake.engine_settings.learn


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["-m", "m.gguf"], "name one with --model-draft"),
        (["--no-draft"], "--learn has no effect without a draft"),
    ],
)
def test_without_a_draft_nobody_would_learn(
    models: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert command_line.main(["generate", "-p", "hi", "--learn", *models]) == 2
    assert said in capsys.readouterr().err


def test_lookups_do_not_learn(capsys: pytest.CaptureFixture[str]):
    words = ["generate", "-p", "hi", "--learn", "--lookup", "-m", str(PAIR.target)]
    assert command_line.main(words) == 2
    assert "name one with --model-draft" in capsys.readouterr().err


def test_the_plan_has_a_row_for_it():
    load = LoadSettings(model=PAIR.target, draft=PAIR.draft, memory_budget="8GiB")
    for learn in (False, True):
        plan = session.plan(load, EngineSettings(learn=learn))
        assert learn == any(row.what == TEXTS_TO_LEARN for row in plan.rows)
