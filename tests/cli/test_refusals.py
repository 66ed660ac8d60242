"""Refusals and failures of the command line: one line, the exit code, nothing left open."""

from __future__ import annotations

import io
import json
import sys

import pytest

from edgespec.cli import command_line
from edgespec.errors import BudgetError, ModelError, PairError, WeightReadError
from edgespec.session import session
from fake_session import PLAN, FakeSession, raising, refuse_to_load


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ModelError("not a GGUF"), 3),
        (PairError("token 5 differs"), 3),
        (BudgetError("too small", 77), 4),
        (WeightReadError("I/O error"), 1),
        (RuntimeError("a surprise"), 1),
        (OSError(5, "broken"), 1),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys, error: Exception, exit_code: int
):
    refuse_to_load(monkeypatch, error)
    assert command_line.main(["generate", "-p", "hi"]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("edgespec: error: ")
    assert str(error) in err
    assert err.count("\n") == 1


def test_a_traceback_is_shown_on_request_only(monkeypatch: pytest.MonkeyPatch, capsys):
    refuse_to_load(monkeypatch, RuntimeError("a surprise"))
    monkeypatch.setenv("EDGESPEC_DEBUG", "1")
    assert command_line.main(["generate", "-p", "hi"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_while_generating_closes_the_session(fake: FakeSession, capsys):
    fake.instead = raising(WeightReadError("cut short"))
    assert command_line.main(["generate", "-p", "hi"]) == 1
    assert fake.is_closed


def test_ctrl_c_closes_the_session(fake: FakeSession, capsys):
    fake.instead = raising(KeyboardInterrupt())
    assert command_line.main(["generate", "-p", "hi"]) == 130
    assert fake.is_closed
    assert capsys.readouterr().err == "edgespec: error: interrupted\n"


def test_an_error_takes_the_place_of_a_progress_line(monkeypatch: pytest.MonkeyPatch):
    refuse_to_load(monkeypatch, WeightReadError("cut short"))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert command_line.main(["generate", "-p", "hi"]) == 1
    assert terminal.getvalue().endswith("edgespec: error: cut short\x1b[K\n")


SUGGESTIONS = [
    ("run llama3", "edgespec has no command 'run': it is one of generate, chat"),
    ("zzz", "edgespec has no command 'zzz': it is one of generate, chat, "),
    ("models pul x", "edgespec models has no command 'pul'; did you mean 'pull'?"),
    ("chat llama3", "-m names a model's file, -hf fetches USER/REPO from Hugging Face"),
    ("generate -p x -m llama3.2:1b", "names of Ollama's library are not known here; -hf USER/REPO"),
    ("generate -p x -m hf.co/user/repo:Q4_0", "is fetched with -hf user/repo:Q4_0, or by"),
    ("plan --memory-budget 4", "--memory-budget 4: 4 alone means bytes; did you mean 4GiB?"),
    ("plan --memory-budget auto:1-2", "auto:1-2: 1 alone means bytes; did you mean 1GiB?"),
    ("plan --memory-budget auto:2GiB", "auto:2GiB: 'auto:2gib' is not a size"),
    ("plan --memory-budget auto:50%-120%", "at most 100% of the memory can be used"),
    ("plan --memory-budget 6000", "did you mean 6000MiB?"),
    ("plan --memory-budget 1.5", "1.5 alone means bytes; did you mean 1.5GiB?"),
]
"""A newcomer's first words, as other programs of this kind are called, answered with ours."""


LONG, HUGE = "a" * 300, "9" * 400


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("models", "command"),
        ("genrate", "genrate"),
        ("generate --modle x -p hi", "--model"),
        ("generate hi", "hi"),
        ("generate -p", "expected one argument"),
        ("generate -p hi --stop ---", "--stop"),
        ("generate -p hi --temp -1e99", "--temp"),
        ("generate -p hi --temp -inf", "--temp"),
        ("generate -p hi -f file", "--prompt"),
        ("generate -f /nonexistent", "--file"),
        ("generate -p hi --top-p 1.5", "--top-p 1.5"),
        ("generate -p hi -n -2", "--n-predict -2"),
        ("generate -p hi -c -1", "--ctx-size -1"),
        ("generate -p hi -m m.gguf -md d.gguf --no-draft", "--model-draft"),
        ("generate -p hi -md d.gguf", "--model-draft"),
        ("generate -p hi -m m.gguf -ngld 3", "--n-gpu-layers-draft"),
        ("generate -p hi --config memory-9gb", "did you mean 'memory-"),
        ("plan --read-limit fast", "--read-limit"),
        ("models enlarge embedded out.gguf", "--size"),
        ("generate -p hi --mem 1G", "--memory-budget"),
        ("generate -p hi -m https://hub.example/x.gguf", "download"),
        ("generate -p hi -m org/name", "-hf"),
        ("generate -p hi -m org/name:Q4_K_M", "org/name:Q4_K_M"),
        ("generate -p hi --trace .", "it is a folder: name a file in it"),
        ("generate -f /dev/zero", "--file"),
        (f"generate -p hi --config {LONG}", "no such file"),
        (f"generate -p hi --json {LONG}", "cannot be written"),
        (f"plan --read-limit {HUGE}", "--read-limit"),
        *((f"plan --what-if {n}B-Q4_K_M", "write parameters") for n in (HUGE, "0.0000001")),
        ("tune -n 1", "-n 1"),
        *SUGGESTIONS,
    ],
)
def test_what_cannot_be_meant_is_refused(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys, command: str, message: str
):
    monkeypatch.setattr(session, "plan", lambda *args: PLAN)
    assert command_line.main(command.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["generate", "-p", "hi", "-m", ""], "--model"),
        (["generate", "-p", "hi", "-md", ""], "--model-draft"),
        (["generate", "-p", "hi", "--json", ""], "--json"),
        (["serve", "-m", "a.gguf", "-m", ""], "--model"),
        (["models", "show", ""], "MODEL"),
    ],
)
def test_an_empty_value_is_refused_by_the_name_of_its_flag(arguments, name, capsys):
    assert command_line.main(arguments) == 2
    assert f"error: {name} is empty: give it a value" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["-p", "--stop", "--grammar", "--json-schema"])
def test_text_that_is_not_utf_8_is_refused_by_the_name_of_its_flag(flag, capsys):
    assert command_line.main(["generate", "-p", "hi", flag, "a\udcff"]) == 2
    assert "is not UTF-8: convert it first" in capsys.readouterr().err


def test_utf_8_is_understood_in_a_locale_without_it(fake: FakeSession):
    """Python hands over the bytes of such an argument as surrogates."""
    prompt = "grüße €".encode().decode("ascii", "surrogateescape")
    assert command_line.main(["generate", "-p", prompt]) == 0
    assert fake.prompt == "grüße €"


def test_an_error_goes_to_the_file_of_json(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path):
    refuse_to_load(monkeypatch, BudgetError("too small", 77))
    out = tmp_path / "out.json"
    assert command_line.main(["generate", "--json", str(out), "-p", "hi"]) == 4
    assert json.loads(out.read_text())["error"]["smallest_bytes"] == 77
    assert capsys.readouterr().out == ""


def test_a_closed_stdin_and_a_model_that_is_not_there_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert command_line.main(["doctor", "-m", "/nonexistent/m.gguf"]) == 3
    monkeypatch.setattr(sys, "stdin", None)
    assert command_line.main(["batch", "-", "out.jsonl"]) == 2
    assert "stdin is closed" in capsys.readouterr().err
