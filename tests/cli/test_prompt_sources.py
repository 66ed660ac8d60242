"""Sources of a prompt: flag, file, pipe."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from edgespec.cli import command_line, invocation
from fake_session import FakeSession


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> None:
    """Bytes in a pipe to stdin; None closes it."""
    pipe = None if data is None else io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(sys, "stdin", pipe)


def test_a_prompt_may_be_piped(fake: FakeSession, monkeypatch: pytest.MonkeyPatch):
    pipe_in(monkeypatch, "grüße\r\n".encode())
    assert command_line.main(["generate"]) == 0
    assert fake.prompt == "grüße\r\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no prompt given"),
        pytest.param(bytes(2 << 20), "stdin: it holds more than 1 MiB", id="longer than a context"),
        (b"", "is empty"),
        (b"ok\xff", "byte 2"),
    ],
)
def test_a_pipe_without_a_prompt_is_refused(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys, data: bytes | None, message: str
):
    monkeypatch.setattr(invocation, "MAX_PROMPT_BYTES", 1 << 20)
    pipe_in(monkeypatch, data)
    assert command_line.main(["generate"]) == 2
    assert message in capsys.readouterr().err


def test_a_prompt_may_come_from_a_file(fake: FakeSession, tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_text("from a file\n")
    assert command_line.main(["generate", "-f", str(path)]) == 0
    assert fake.prompt == "from a file\n"
