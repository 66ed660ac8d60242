"""Sources of a prompt: flag, file, pipe."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from edgespec.cli import command_line, invocation
from fake_session import FakeSession


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_prompt_may_be_piped(fake: FakeSession, monkeypatch: pytest.MonkeyPatch):
    pipe_in(monkeypatch, "grüße\r\n".encode())
    assert command_line.main(["generate"]) == 0
    assert fake.prompt == "grüße\r\n"


def test_a_closed_stdin_is_no_prompt(fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert command_line.main(["generate"]) == 2
    assert "no prompt given" in capsys.readouterr().err


def test_a_prompt_that_no_context_holds_is_not_read_to_its_end(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(invocation, "MAX_PROMPT_BYTES", 1 << 20)
    pipe_in(monkeypatch, bytes(2 << 20))
    assert command_line.main(["generate"]) == 2
    assert "stdin: it holds more than 1 MiB" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "message"), [(b"", "is empty"), (b"ok\xff", "byte 2")])
def test_a_pipe_without_text_is_refused(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys, data: bytes, message: str
):
    pipe_in(monkeypatch, data)
    assert command_line.main(["generate"]) == 2
    assert message in capsys.readouterr().err


def test_a_prompt_may_come_from_a_file(fake: FakeSession, tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_text("from a file\n")
    assert command_line.main(["generate", "-f", str(path)]) == 0
    assert fake.prompt == "from a file\n"
