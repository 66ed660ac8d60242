"""Messages name settings by marks: as text they are arguments, the command line says its flags."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.refusals import refusal_of
from edgespec.errors import (
    BudgetError,
    EdgespecError,
    ModelError,
    Sentence,
    UsageError,
    marked,
    setting,
)
from edgespec.settings.base import FLAGS, Settings, in_flags
from edgespec.settings.config import GenerateSettings, LoadSettings, ServerSettings
from edgespec.settings.options import declared

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("said", "text", "told"),
    [
        (f"raise {setting.ctx_size}", "raise `ctx_size`", "raise --ctx-size"),
        (f"{setting.n_parallel(4)} waits", "`n_parallel=4` waits", "--parallel 4 waits"),
        (
            f"{setting.lookup(True)} or {setting.draft(None)}",
            "`lookup=True` or `draft=None`",
            "lookup = true in a --config file or --no-draft",
        ),
        (setting.draft("self"), '`draft="self"`', "--model-draft self"),
        ("a folder `ctx_size`", "a folder `ctx_size`", "a folder `ctx_size`"),
    ],
)
def test_a_setting_is_spelled_for_who_reads_it(said: str, text: str, told: str) -> None:
    assert Sentence(said) == text
    assert str(UsageError(said)) == text
    assert in_flags(said) == in_flags(Sentence(said)) == told


def test_a_setting_of_a_file_is_told_by_its_key() -> None:
    said = f"{setting.ctx_size(-4)}: {setting.lookup(True)} needs {setting.draft}"
    told = in_flags(said, Path("s.toml"), {"ctx_size", "lookup"})
    assert told == "ctx-size = -4 in s.toml: lookup = true in s.toml needs --model-draft"


def test_an_error_of_another_process_and_one_made_of_it_keep_their_settings() -> None:
    error = pickle.loads(pickle.dumps(BudgetError(f"raise {setting.memory_budget}", 5)))
    assert (str(error), error.smallest_bytes) == ("raise `memory_budget`", 5)
    assert in_flags(f"not now: {marked(error)}") == "not now: raise --memory-budget"


def test_what_messages_name_are_settings() -> None:
    kinds: tuple[type[Settings], ...] = (LoadSettings, GenerateSettings, ServerSettings)
    known = {*FLAGS, *(n for kind in (*kinds, *declared().values()) for n in kind.model_fields)}
    files = [*ROOT.glob("edgespec/**/*.py"), *ROOT.glob("runtimes/**/*.py")]
    named = {
        node.attr
        for tree in (ast.parse(file.read_text()) for file in files)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "setting"
    }
    assert len(named) > 15
    assert named <= known


@pytest.mark.parametrize("kind", [RequestError, BudgetError, ModelError])
def test_clients_of_the_server_read_flags_of_what_its_operator_sets(
    kind: type[EdgespecError],
) -> None:
    error = kind(f"load it with {setting.adjustable_budget(True)} or {setting.ctx_size}")
    told = "load it with adjustable-budget = true in a --config file or --ctx-size"
    assert refusal_of(error).message == told


def test_the_command_line_reads_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["plan", "-m", "target", "--memory-budget", "20MiB"]) == 4
    assert "raise --memory-budget or lower --ctx-size" in capsys.readouterr().err
