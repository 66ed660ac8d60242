"""Errors name settings in backticks as Python spells them; the command line says its flags."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

import edgespec
from edgespec import EngineSettings, LoadSettings
from edgespec.cli import command_line
from edgespec.cli.console import Console
from edgespec.reports import Report, Row
from edgespec.settings.base import in_flags
from edgespec.settings.config import SamplingParams


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: LoadSettings(model="m", ctx_size=-2), "`ctx_size=-2`: it must be"),
        (lambda: LoadSettings(model="m", memory_budget="much"), "`memory_budget=much`"),
        (lambda: LoadSettings(model="m", threads_draft=2), "name one with `draft`"),
        (lambda: LoadSettings(model="m", prompt_cache_size="1GiB"), "needs `prompt_cache`,"),
        (lambda: LoadSettings(model="m", n_gpu_layers_draft=3), "`n_gpu_layers_draft` needs a"),
        (lambda: EngineSettings(keep=3), "`keep` has no effect without `context_shift`"),
        (lambda: SamplingParams(logit_bias={99: 1.0}).check_vocabulary(12), "`logit_bias` names"),
        (lambda: edgespec.plan("none.gguf"), "the path given with `model` or `draft`"),
        (
            lambda: edgespec.plan(LoadSettings(model="target", memory_budget="20MiB")),
            "raise `memory_budget` or lower `ctx_size`",
        ),
    ],
)
def test_python_reads_arguments(refused: Callable[[], object], said: str) -> None:
    with pytest.raises(edgespec.EdgespecError) as refusal:
        refused()
    assert said in str(refusal.value)
    assert " -" not in str(refusal.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("raise `ctx_size`", "raise --ctx-size"),
        ("`n_parallel=4` waits", "--parallel 4 waits"),
        ("`lookup=True` or `draft=None`", "lookup = true in a --config file or --no-draft"),
        ('`draft="self"` makes', "--model-draft self makes"),
        ("`edgespec serve` and `chat`", "`edgespec serve` and `chat`"),
    ],
)
def test_a_message_is_told_in_flags(said: str, told: str) -> None:
    assert in_flags(said) == told


def test_a_setting_of_a_file_is_told_by_its_key() -> None:
    said = "`ctx_size=-4`: `lookup=True` needs `draft`"
    told = in_flags(said, Path("s.toml"), {"ctx_size", "lookup"})
    assert told == "ctx-size = -4 in s.toml: lookup = true in s.toml needs --model-draft"


def test_a_refused_budget_keeps_its_figure() -> None:
    settings = LoadSettings(model="target", memory_budget="20MiB")
    with pytest.raises(edgespec.BudgetError) as refusal:
        edgespec.plan(settings)
    assert (refusal.value.smallest_bytes or 0) > 20 << 20


def test_the_command_line_reads_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["plan", "-m", "target", "--memory-budget", "20MiB"]) == 4
    assert "raise --memory-budget or lower --ctx-size" in capsys.readouterr().err


def test_a_budget_that_holds_fewer_texts_says_so() -> None:
    """A shorter context was all that the refusal named."""
    settings = LoadSettings(model="target", memory_budget="20MiB", n_parallel=2)
    with pytest.raises(edgespec.BudgetError, match=r"; fewer texts at once \(`n_parallel`\)"):
        edgespec.plan(settings)


def test_notes_of_a_plan_are_told_in_flags(capsys: pytest.CaptureFixture[str]) -> None:
    rules = EngineSettings(acceptance="rejection")
    told = edgespec.plan("target", rules, draft="draft", n_parallel=4).notes
    (note,) = (note for note in told if "`n_parallel=4` waits in line" in note)
    console = Console()
    console.note(note)
    console.result(Namespace(json="-"), Report(Row("notes", [note])))
    console.result(Namespace(), Report(Row("notes", [note], [note])))
    shown = capsys.readouterr()
    assert (shown.err + shown.out).count("--parallel 4 waits in line") == 3
