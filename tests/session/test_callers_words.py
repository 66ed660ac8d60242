"""Errors name settings as their caller does: arguments in Python, flags on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import edgespec
from edgespec import EngineSettings, LoadSettings, SamplingParams, UsageError
from edgespec.cli import command_line
from edgespec.models.embedded import embedded_pair
from edgespec.session.given import in_words
from edgespec.settings.base import Names, PythonNames
from edgespec.settings.config import GenerateSettings


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: LoadSettings(model="m", ctx_size=-2), "ctx_size -2: it must be"),
        (lambda: LoadSettings(model="m", memory_budget="much"), "memory_budget much"),
        (lambda: LoadSettings(model="m", threads_draft=2), "name one with draft"),
        (lambda: LoadSettings(model="m", prompt_cache_size="1GiB"), "needs prompt_cache,"),
        (lambda: LoadSettings(model="m", n_gpu_layers_draft=3), "n_gpu_layers_draft needs a draft"),
        (lambda: EngineSettings(keep=3), "keep has no effect without context_shift"),
        (lambda: edgespec.plan("none.gguf"), "the path given with model or draft"),
        (
            lambda: edgespec.plan(LoadSettings(model="target", memory_budget="20MiB")),
            "raise memory_budget or lower ctx_size",
        ),
    ],
)
def test_python_reads_arguments(refused: Callable[[], object], said: str) -> None:
    with pytest.raises(edgespec.EdgespecError) as refusal:
        refused()
    assert said in str(refusal.value)
    assert " -" not in str(refusal.value).replace(" -2", "")


def test_a_command_of_python_keeps_its_flags() -> None:
    said = in_words("give -m, or: python -m pip install x", PythonNames())
    assert said == "give model, or: python -m pip install x"


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
    with pytest.raises(edgespec.BudgetError, match=r"; fewer texts at once \(n_parallel\)"):
        edgespec.plan(settings)


def test_notes_of_a_plan_are_in_the_callers_words() -> None:
    given = {"model": Path("target"), "draft": Path("draft"), "n_parallel": 4}
    rules = EngineSettings(acceptance="rejection")
    told = edgespec.plan(LoadSettings(**given), rules).notes
    assert any("n_parallel 4 waits in line" in note for note in told)
    told = edgespec.plan(LoadSettings.model_validate(given, context=Names()), rules).notes
    assert any("--parallel 4 waits in line" in note for note in told)


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (None, ("raise ctx_size", "a template with use_chat_template")),
        (Names(), ("raise --ctx-size", "a template with --chat-template-file")),
    ],
    ids=["Python", "command line"],
)
def test_refused_texts_are_in_the_callers_words(who: Names | None, said: tuple[str, str]) -> None:
    given = {"model": embedded_pair().target, "ctx_size": 64}
    messages = [{"role": "user", "content": "hi"}]
    with edgespec.load(LoadSettings.model_validate(given, context=who)) as session:
        for refused, words in zip(
            (lambda: session.stream("a " * 99), lambda: session.chat(messages)), said, strict=True
        ):
            with pytest.raises(edgespec.EdgespecError) as refusal:
                refused()
            assert words in str(refusal.value)


def test_a_token_that_is_none_is_told_by_its_flag() -> None:
    bias = {"logit_bias": {99: 1.0}}
    text = GenerateSettings.model_validate(bias, context=Names())
    for sampling, words in (
        (text.sampling(0), "--logit-bias names token 99"),
        (SamplingParams(**bias), "logit_bias names token 99"),
    ):
        with pytest.raises(UsageError, match=f"^{words}"):
            sampling.check_vocabulary(12)


def test_settings_are_equal_whoever_gave_them() -> None:
    given = {"model": Path("m"), "ctx_size": 5}
    told = LoadSettings.model_validate(given, context=Names())
    assert told == LoadSettings(model="m", ctx_size=5)
    assert told.without_draft().names.of("draft") == "--model-draft"


def test_a_file_is_named_by_whom_it_refuses(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    with pytest.raises(UsageError, match=r"ctx-size = -4 in .*settings\.toml"):
        LoadSettings.model_validate(
            {"model": "m", "ctx_size": -4}, context=Names(file, frozenset({"ctx_size"}))
        )
