"""Ctrl-C, SIGTERM, a reader that leaves and a full disk: what is kept, and how the process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.values import GenerationResult, SpeculationStats, TokenEvent
from fake_session import WORDS, FakeSession


def interrupt_after_the_first_word(fake: FakeSession) -> None:
    """Ctrl-C while the second word is made."""

    def words() -> Generator[TokenEvent, None, GenerationResult]:
        yield WORDS[0]
        os.kill(os.getpid(), signal.SIGINT)
        assert fake.cancelled.wait(60)
        return GenerationResult(
            text="one tw",
            prompt_tokens=(7, 8),
            tokens=(1, 2),
            finish_reason="cancelled",
            speculation=SpeculationStats(rounds=2),
        )

    fake._words = words  # type: ignore[method-assign]


def test_ctrl_c_keeps_the_text_so_far_and_its_summary(fake: FakeSession, capsys):
    """The end of the text was held back, because a stop string may have begun there."""
    interrupt_after_the_first_word(fake)
    assert command_line.main(["generate", "-p", "hi", "--temp", "1", "--seed", "5"]) == 130
    out, err = capsys.readouterr()
    assert out == "one tw"
    assert "2 tokens; ended by cancelled" in err and "seed: 5" in err
    assert err.endswith("edgespec: error: interrupted\n")
    assert fake.is_closed


def test_ctrl_c_keeps_the_json_too(fake: FakeSession, capsys):
    interrupt_after_the_first_word(fake)
    assert command_line.main(["generate", "-p", "hi", "--json", "--seed", "5"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["finish_reason"], report["seed"]) == ("one tw", "cancelled", 5)


INTERRUPTED_IMPORT = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise {error}
sys.meta_path.insert(0, Interrupting())
sys.argv = ["edgespec", "generate", "-p", "hi", "--quiet"]  # a slow start tells its progress
from edgespec.__main__ import main
sys.exit(main())
"""


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("edgespec.cli", "KeyboardInterrupt"),
        ("argparse", "RuntimeError from KeyboardInterrupt()"),
        ("pydantic", "KeyboardInterrupt"),
        ("numpy", "RuntimeError from KeyboardInterrupt()"),
        ("llama_cpp", "KeyboardInterrupt"),
    ],
)
def test_ctrl_c_during_an_import_is_one_line(name: str, error: str):
    """CPython 3.11 makes one that comes while a class is made into a RuntimeError."""
    code = INTERRUPTED_IMPORT.format(name=name, error=error)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (130, b"edgespec: error: interrupted\n")


def test_nothing_is_imported_before_ctrl_c_is_minded():
    """Ctrl-C during imports before that would end in a traceback."""
    code = (
        "import sys; before = set(sys.modules); import edgespec.__main__;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert set(run.stdout.split()) <= {"__future__", "edgespec", "edgespec.__main__"}


def test_sigterm_is_like_ctrl_c(fake: FakeSession):
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        fake.cancelled.wait(60)

    before = signal.getsignal(signal.SIGTERM)
    fake.instead = terminate
    assert command_line.main(["generate", "-p", "hi"]) == 130
    assert fake.is_closed
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_reader_that_leaves_ends_the_generation_quietly(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        assert command_line.main(["generate", "-p", "hi"]) == 1
    assert fake.is_closed
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_an_error(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert command_line.main(["generate", "-p", "hi"]) == 1
    assert "the output cannot be written: No space left" in capsys.readouterr().err


def test_a_closed_stdout_is_an_error(fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys):
    """The text had gone nowhere, with exit code 0, where a shell closes it by `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    assert command_line.main(["generate", "-p", "hi"]) == 1
    assert "is stdout closed?" in capsys.readouterr().err
    sys.stdout.close()
