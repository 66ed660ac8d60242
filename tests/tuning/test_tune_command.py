"""`edgespec tune`: what it refuses, and the whole of it on the embedded pair."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.cli.commands import tune as tune_command
from edgespec.cli.console import Console
from edgespec.cli.flags import parser
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, PairError
from edgespec.memory import process
from edgespec.models import packaged
from edgespec.models.embedded import embedded_pair
from edgespec.session.session import plan
from edgespec.settings.config import LoadSettings
from edgespec.settings.toml_file import read_config
from edgespec.tuning import presets, trial, trial_runner
from formula_trials import FormulaTrialRunner
from test_end_to_end import edgespec

pytestmark = pytest.mark.usefixtures("own_cache_folder")

BUDGET = "200MiB"
TUNE = ("tune", "--memory-budget", "200MiB")


@pytest.mark.costly
@pytest.mark.parametrize(
    ("flags", "exit_code", "says"),
    [
        ("--prompts none.txt", 2, "--prompts none.txt: No such file"),
        ("--seconds soon", 2, "--seconds soon"),
        ("--temp warm", 2, "--temp warm"),
        ("--seconds 1", 2, "it must be greater than or equal to 10"),
        ("--out /nowhere/preset.toml", 2, "there is no folder /nowhere"),
        ("-m none.gguf", 3, "none.gguf does not exist"),
        ("--memory-budget 1MiB", 4, "too small"),
        ("--read-limit much", 2, "--read-limit much"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    flags: str, exit_code: int, says: str, capsys: pytest.CaptureFixture[str]
):
    assert command_line.main(["tune", *flags.split()]) == exit_code
    assert says in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tmp_path.chmod(0o500)
    assert command_line.main(["tune", "--out", str(tmp_path / "preset.toml")]) == 1
    assert "--out FILE" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process is larger than the command's."""
    monkeypatch.setattr(trial, "own_bytes", lambda: 0)


def test_a_trial_has_what_this_process_leaves_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "own_bytes", lambda: 60 << 20)
    given = LoadSettings(model=embedded_pair().target, memory_budget="300MiB")
    assert trial.beside_this_process(given).memory_budget == 240 << 20
    free = LoadSettings(model=embedded_pair().target)
    assert trial.beside_this_process(free) == free


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> FormulaTrialRunner:
    """Takes the place of processes: nothing is loaded."""
    runner = FormulaTrialRunner(
        lambda candidate: 6.0 if candidate.changed.get("draft_max") == 8 else 5.0
    )
    monkeypatch.setattr(tune_command, "_trial_runner", lambda *_: runner)
    return runner


@pytest.mark.slow
def test_interrupted_tuning_leaves_nothing(
    synthetic: FormulaTrialRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(_: object) -> float:
        raise KeyboardInterrupt

    synthetic.speed = interrupt
    out = tmp_path / "folder" / "preset.toml"
    out.parent.mkdir()
    assert command_line.main([*TUNE, "--out", str(out)]) == 130
    assert not list(out.parent.iterdir())


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_after_the_table_and_the_preset(
    synthetic: FormulaTrialRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(presets, "check_writable", lambda *_: None)
    monkeypatch.setattr(presets, "unfinished_file", full)
    assert command_line.main([*TUNE, "--out", str(tmp_path / "preset.toml")]) == 1
    told = capsys.readouterr()
    assert "No space left on device" in told.err and "to defaults" in told.out
    assert "draft-max = 8\n" in told.err


@pytest.mark.slow
def test_the_preset_gives_its_reasons(synthetic: FormulaTrialRunner, tmp_path: Path):
    out = tmp_path / "preset.toml"
    assert command_line.main([*TUNE, "--out", str(out)]) == 0
    text = out.read_text()
    assert "tokens/s" in text and "draft-max = 8" in text
    assert read_config(out)["memory_budget"] == 200 << 20


@pytest.mark.parametrize(
    ("flags", "temperature", "top_k"), [([], 0.8, 40), (["--temp", "0.3"], 0.3, 40)]
)
def test_candidates_are_judged_as_chat_samples(
    flags: list[str], temperature: float, top_k: int
) -> None:
    job, _ = tune_command.job_from(parser.parse([*TUNE, *flags]), Console(quiet=True))
    assert (job.sampling.temperature, job.sampling.top_k) == (temperature, top_k)


@pytest.fixture
def drafts_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path | None, list[Path]]]:
    """The draft of the defaults, and all drafts that compete; plans are made in this process."""
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(trial_runner, "plan_trial", plan)

    def chosen(*words: object) -> tuple[Path | None, list[Path]]:
        args = parser.parse(["tune", "--memory-budget", "8GiB", *map(str, words)])
        job, _ = trial_runner.planned(tune_command.job_from(args, Console(quiet=True))[0])
        return job.load.draft, list(job.drafts)

    return chosen


@pytest.mark.slow
def test_a_target_s_own_layer_competes_with_the_drafts_that_are_named(
    drafts_of: Callable[..., Any], tmp_path: Path
):
    from zoo_files import write_guessing

    target = write_guessing(tmp_path / "own.gguf", "glm4moe", knows=True)
    small = Path(shutil.copy(target, tmp_path / "small.gguf"))
    assert drafts_of("-m", target, "-md", small) == (small, [small, target])
    assert drafts_of("-m", target) == (target, [target])
    assert drafts_of("-m", target, "--no-draft") == (None, [])


@pytest.mark.slow
def test_a_layer_that_was_left_out_does_not_compete(
    drafts_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from zoo_files import write_guessing

    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 << 20)
    target = write_guessing(tmp_path / "own.gguf", "glm4moe", knows=True)
    alone = plan(LoadSettings(model=target, memory_budget="8GiB"), EngineSettings())
    least = f"{alone.smallest_bytes}B"
    assert drafts_of("-m", target, "--memory-budget", least) == (None, [])


@pytest.mark.slow
def test_a_target_is_tuned_alone_where_the_draft_that_it_comes_with_does_not_fit(
    drafts_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """`generate` ran with a budget that `tune` refused."""
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 << 20)
    pair = embedded_pair()
    monkeypatch.setattr(packaged, "named", lambda _: "pair")
    monkeypatch.setattr(packaged, "draft_of", lambda _: pair.draft)
    alone = plan(LoadSettings(model=pair.target, memory_budget="8GiB"), EngineSettings())
    words = ("-m", pair.target, "--memory-budget", f"{alone.smallest_bytes}B")
    assert drafts_of("-m", pair.target) == (pair.draft, [pair.draft])
    assert drafts_of(*words) == (None, [])
    with pytest.raises(BudgetError):
        drafts_of(*words, "-md", pair.draft)


@pytest.mark.slow
def test_the_first_draft_that_fits_is_the_default(drafts_of: Callable[..., Any], tmp_path: Path):
    from gguf_files import tiny_llama

    other, pair = tiny_llama().write(tmp_path / "other.gguf"), embedded_pair()
    words = ("-m", pair.target, "-md", other)
    assert drafts_of(*words, "-md", pair.draft) == (pair.draft, [other, pair.draft])
    with pytest.raises(PairError, match="different vocabularies"):
        drafts_of(*words)


def generate(*flags: str) -> dict[str, Any]:
    """In a process of its own: a budget is the whole process's, and that of the tests is large."""
    command = ["generate", "-p", "def gcd(a, b):", "-n", "24", "--memory-budget", BUDGET, "--json"]
    done = edgespec(*command, "-c", "256", *flags)
    assert done.code == 0, done.stderr
    return done.json


@pytest.mark.slow
def test_the_embedded_pair_is_tuned_within_its_budget(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, own_cache_folder: Path
):
    """Its preset is found again, and the text stays what it is."""
    tuning = ["tune", "--memory-budget", BUDGET, "-c", "256", "--seconds", "10", "--json"]
    assert command_line.main(tuning) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["peak_bytes"] <= told["budget_bytes"]
    assert told["trials"][0]["draft"] == str(embedded_pair().draft)
    preset = Path(told["preset"])
    assert preset.parent == own_cache_folder / "tuned"
    assert read_config(preset)["model"] == embedded_pair().target
    usual, tuned = generate("--no-tuned"), generate()
    assert tuned["tokens"] == usual["tokens"]
    forced = tmp_path / "forced.toml"
    forced.write_text("threads = 1\nthreads-draft = 2\ndraft-max = 8\nno-overlap = true\n")
    given = generate("--config", str(forced))
    assert given["tokens"] == usual["tokens"]
    assert given["memory"]["peak_bytes"] <= given["memory"]["budget_bytes"]
