"""Lines of a pipe, and the history of a terminal."""

import io
import os
import stat
import sys
from pathlib import Path

import pytest

from edgespec.cli.commands import chat, chat_input
from edgespec.errors import EdgespecError, UsageError
from sentences import refuses


def piped(content: bytes, tmp_path) -> list[str]:
    stdin = io.TextIOWrapper(io.BytesIO(content))
    return list(chat_input.lines(tmp_path / "history", stdin))


def test_a_line_is_a_message_and_a_backslash_joins_two(tmp_path):
    assert piped("a\\\nb\r\nü\nc\\".encode(), tmp_path) == ["a\nb", "ü", "c\n"]


@pytest.mark.parametrize(
    "content",
    [
        b"fine\nx\377\n",
        b"x" * (chat_input.MAX_MESSAGE_BYTES + 1),
        b"a\n" + 5 * (b"x" * (1 << 20) + b"\\\n"),
    ],
)
def test_a_line_that_is_no_message_is_refused(content, tmp_path):
    with refuses(UsageError):
        piped(content, tmp_path)


def test_the_history_is_its_owners_alone_whatever_it_was(tmp_path):
    history = tmp_path / "chat_history"
    chat_input.make_private(history)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    history.chmod(0o644)
    history.write_text("kept")
    chat_input.make_private(history)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert history.read_text() == "kept"


def test_a_history_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "chat_history").symlink_to(tmp_path / "elsewhere")
    with refuses(EdgespecError):
        chat_input.make_private(tmp_path / "chat_history")


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
def test_a_history_on_a_full_disk_ends_no_conversation():
    chat_input._session(Path("/dev/full")).history.store_string("said")


def test_a_path_of_a_user_that_is_not_known_is_a_path():
    assert chat._path("~nobody-here/talk", "/save") == Path("~nobody-here/talk")


def test_what_is_typed_is_not_written_to_a_file_of_answers(monkeypatch):
    pty = pytest.importorskip("pty")
    _, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(sys, "stderr", terminal)
        assert chat_input._session(None).output.stdout is terminal
