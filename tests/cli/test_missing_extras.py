"""A command that needs a missing package ends with one sentence, before any model is read."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec import extras
from edgespec.models import embedded

WITHOUT = """
import importlib, os, sys, tempfile
import edgespec.session.session
from edgespec.cli.command_line import main

def without(packages, arguments):
    assert not set(packages) & set(sys.modules), "imported before it is needed"
    sys.modules.update(dict.fromkeys(packages))
    return main(arguments)

for line in sys.stdin:
    packages, *arguments = line.rstrip("\\n").split("\\t")
    with tempfile.TemporaryFile("w+") as said:
        if (child := os.fork()) == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said.fileno(), 2)
            os._exit(without(packages.split(","), arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        print(code, said.read().rstrip().replace("\\n", "\\t"), flush=True)
"""
"""Runs each command in a fork of a process that has imported what every command needs. A module
that is None cannot be imported."""

ALONE = (
    "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(',')));"
    "from edgespec.cli.command_line import main; sys.exit(main(sys.argv[1:]))"
)

Refused = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def refused() -> Iterator[Refused]:
    """Exit code and error of a command where packages are not installed."""
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(packages: str, *arguments: str) -> tuple[int, str]:
            asked.write("\t".join((packages, *arguments)) + "\n")
            asked.flush()
            code, _, said = answers.readline().rstrip("\n").partition(" ")
            assert "\t" not in said, said.split("\t")
            return int(code), said

        yield run
        asked.close()


def refused_at_a_terminal(packages: str, *arguments: str) -> tuple[int, str]:
    keyboard, screen = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, packages, *arguments],
            stdin=screen,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(screen)
    (line,) = done.stderr.splitlines()
    return done.returncode, line


NOWHERE = ("-m", "/nowhere.gguf")
TEXT = ("generate", *NOWHERE, "-p", "x", "--quiet")
SERVING = "serving needs starlette and uvicorn"
TEMPLATES = "chat templates need jinja2"
FETCHING = "fetching models needs huggingface_hub"
STRUCTURE = "grammars and JSON schemas need llguidance"


@pytest.mark.parametrize(
    ("package", "words", "said", "extra"),
    [
        ("starlette", ("serve", *NOWHERE), SERVING, "serve"),
        ("uvicorn", ("serve", *NOWHERE), SERVING, "serve"),
        ("jinja2", ("chat", *NOWHERE, "--quiet"), TEMPLATES, "chat"),
        ("jinja2", ("serve", *NOWHERE, "--quiet"), TEMPLATES, "chat"),
        ("httpx2", ("generate", "-hf", "user/model", "-p", "x"), FETCHING, "hub"),
        ("huggingface_hub", ("generate", "-hf", "user/model", "-p", "x"), FETCHING, "hub"),
        ("llguidance", (*TEXT, "--grammar", "{}"), STRUCTURE, "grammar"),
        ("llguidance", (*TEXT, "--json-schema", "{}"), STRUCTURE, "grammar"),
    ],
)
def test_what_needs_a_package_wants_its_extra(
    package: str, words: tuple[str, ...], said: str, extra: str, refused: Refused
) -> None:
    code, line = refused(package, *words)
    assert code == 2
    assert line.startswith(f"edgespec: error: {said}")
    assert line.endswith(extras.install_command(extra))


@pytest.mark.slow
def test_a_terminal_to_chat_in_wants_the_extra_chat() -> None:
    code, line = refused_at_a_terminal("prompt_toolkit", "chat", "-m", "/nowhere.gguf", "--quiet")
    assert code == 2
    assert line.startswith("edgespec: error: a terminal to chat in needs prompt_toolkit")
    assert line.endswith(extras.install_command("chat"))


def test_an_onnx_model_wants_the_extra_onnx(refused: Refused) -> None:
    model: Path = embedded.embedded_pair().target.parent / "edgespec-target-onnx-fp16"
    code, line = refused("onnxruntime", "generate", "-m", str(model), "-p", "x", "--quiet")
    assert code == 3
    assert line.endswith(extras.install_command("onnx"))


def test_the_command_installs_from_the_clone_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Path(extras.__file__).parents[1]
    monkeypatch.setattr(sys, "executable", str(clone / ".venv/bin/python"))
    monkeypatch.chdir(clone)
    assert extras.install_command("serve") == ".venv/bin/python -m pip install -e '.[serve]'"
    monkeypatch.chdir(clone.parent)
    assert f"install -e '{clone.name}[serve]'" in extras.install_command("serve")
