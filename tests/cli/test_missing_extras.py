"""A command that needs a missing package ends with one sentence, before any model is read."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import extras
from edgespec.models import embedded

WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(',')));"
    "from edgespec.cli.entry import main; sys.exit(main(sys.argv[1:]))"
)
"""A module that is None cannot be imported."""


def refused(packages: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> tuple[int, str]:
    """Exit code and error of a process in which these packages are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, packages, *arguments],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    return done.returncode, line


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_serving_wants_the_extra_serve(package: str) -> None:
    code, line = refused(package, "serve", "-m", "/nowhere.gguf")
    assert code == 2
    assert line.startswith("edgespec: error: serving needs starlette and uvicorn")
    assert line.endswith(extras.install_command("serve"))


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_templates_want_the_extra_chat(command: str) -> None:
    code, line = refused("jinja2", command, "-m", "/nowhere.gguf", "--quiet")
    assert code == 2
    assert line.startswith("edgespec: error: chat templates need jinja2")
    assert line.endswith(extras.install_command("chat"))


def test_a_terminal_to_chat_in_wants_the_extra_chat() -> None:
    keyboard, screen = pty.openpty()
    try:
        code, line = refused(
            "prompt_toolkit", "chat", "-m", "/nowhere.gguf", "--quiet", stdin=screen
        )
    finally:
        os.close(keyboard)
        os.close(screen)
    assert code == 2
    assert line.startswith("edgespec: error: a terminal to chat in needs prompt_toolkit")
    assert line.endswith(extras.install_command("chat"))


def test_a_pipe_to_chat_in_wants_no_terminal() -> None:
    code, line = refused("prompt_toolkit", "chat", "-m", "/nowhere.gguf", "--quiet")
    assert code == 3
    assert "/nowhere.gguf does not exist" in line


@pytest.mark.parametrize("package", ["httpx2", "huggingface_hub"])
def test_fetching_wants_the_extra_hub(package: str) -> None:
    code, line = refused(package, "generate", "-hf", "user/model", "-p", "x")
    assert code == 2
    assert line.startswith("edgespec: error: fetching models needs huggingface_hub")
    assert line.endswith(extras.install_command("hub"))


@pytest.mark.parametrize("flag", ["--grammar", "--json-schema", "--regex"])
def test_structured_answers_want_the_extra_grammar(flag: str) -> None:
    code, line = refused(
        "llguidance", "generate", "-m", "/nowhere.gguf", "-p", "x", flag, "{}", "--quiet"
    )
    assert code == 2
    assert line.startswith("edgespec: error: grammars and JSON schemas need llguidance")
    assert line.endswith(extras.install_command("grammar"))


def test_an_onnx_model_wants_the_extra_onnx() -> None:
    model: Path = embedded.embedded_pair().target.parent / "edgespec-target-onnx-fp16"
    code, line = refused("onnxruntime", "generate", "-m", str(model), "-p", "x", "--quiet")
    assert code == 3
    assert line.endswith(extras.install_command("onnx"))


def test_completion_scripts_want_the_extra_completion() -> None:
    code, line = refused("shtab", "completion", "bash")
    assert code == 2
    assert line.endswith(extras.install_command("completion"))


def test_the_command_installs_from_the_clone_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Path(extras.__file__).parents[1]
    monkeypatch.setattr(sys, "executable", str(clone / ".venv/bin/python"))
    monkeypatch.chdir(clone)
    assert extras.install_command("serve") == ".venv/bin/python -m pip install -e '.[serve]'"
    monkeypatch.chdir(clone.parent)
    assert f"install -e '{clone.name}[serve]'" in extras.install_command("serve")


@pytest.mark.parametrize(
    ("told", "source"),
    [
        ('{"url": "file:///w/edgespec-0.1.0.whl"}', "edgespec[hub] @ file:///w/edgespec-0.1.0.whl"),
        (
            '{"url": "https://h/edgespec", "vcs_info": {"vcs": "git"}}',
            "edgespec[hub] @ git+https://h/edgespec",
        ),
        (None, "edgespec[hub]"),
        ("no JSON", "edgespec[hub]"),
    ],
)
def test_it_installs_from_where_a_wheel_came(
    told: str | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return told

    monkeypatch.setattr(extras, "__file__", str(tmp_path / "edgespec/extras.py"))
    monkeypatch.setattr(extras, "distribution", lambda name: Installed())
    assert extras.install_command("hub").endswith(f" -m pip install '{source}'")
