"""Text, notes and progress on streams that are, or are not, one terminal."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from edgespec.cli import console as output
from edgespec.cli.console import Console, wants_color
from edgespec.errors import EdgespecError
from edgespec.values import TokenEvent
from sentences import refuses


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def progress(
    console: Console, clock: FakeClock, step_s: float, *shares: float, what: str = "loading"
) -> None:
    """Tell of shares of a phase, so many seconds after each other."""
    for share in shares:
        console.progress(what, share)
        clock.now_s += step_s


@pytest.mark.parametrize(
    ("mode", "stream", "environ", "wanted"),
    [
        ("auto", FakeTerminal(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", FakeTerminal(), {"NO_COLOR": "1"}, False),
        ("auto", FakeTerminal(), {"NO_COLOR": ""}, True),
        ("auto", FakeTerminal(), {"TERM": "dumb"}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),
        ("never", FakeTerminal(), {}, False),
    ],
)
def test_color_is_for_terminals_that_want_it(mode, stream, environ, wanted):
    assert wants_color(mode, stream, environ) is wanted


def test_what_is_soon_done_shows_no_progress():
    err, clock = FakeTerminal(), FakeClock()
    console = Console(stderr=err, clock=clock)
    progress(console, clock, 0.3, 0.0, 0.5, 1.0)
    assert err.getvalue() == ""


def test_a_terminal_sees_one_line_that_text_removes():
    out, err, clock = FakeTerminal(), FakeTerminal(), FakeClock()
    console = Console("never", stdout=out, stderr=err, clock=clock)
    progress(console, clock, 2, 0.0, 0.25, 0.5)
    console.token(TokenEvent("word", 1, "target", 0))
    console.token(TokenEvent("word", 1, "target", 0))
    clear = "\r\x1b[K"
    assert err.getvalue() == f"{clear}loading: 25%\r{clear}loading: 50%\r{clear}"


def test_a_log_gets_plain_lines_now_and_then():
    err, clock = io.StringIO(), FakeClock()
    console = Console(stderr=err, clock=clock)
    progress(console, clock, 2, *(share / 100 for share in range(0, 100, 10)))
    assert err.getvalue() == "loading: 10%\nloading: 40%\nloading: 70%\n"


@pytest.mark.parametrize("width", [20, 80])
def test_progress_on_a_terminal_is_one_line(width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(width))
    err, clock = FakeTerminal(), FakeClock()
    console = Console(stderr=err, clock=clock)
    progress(console, clock, 6, 0.0, 0.5, what="fetching a model with a long name")
    assert len(err.getvalue().strip("\r").removeprefix("\x1b[K")) <= width - 1


def test_quiet_keeps_notes_and_progress():
    err, clock = io.StringIO(), FakeClock()
    console = Console(quiet=True, stderr=err, clock=clock)
    progress(console, clock, 9, 0.0, 0.5)
    console.note("to know")
    assert err.getvalue() == ""


NASTY = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\re\x7f\tf\n"
SHOWN = "a]0;titleb[2Jc31mde\tf\n"


@pytest.mark.parametrize(
    ("color", "stream", "shown"),
    [
        ("never", FakeTerminal(), SHOWN),
        ("always", io.StringIO(), SHOWN),
        ("never", io.StringIO(), NASTY),
    ],
)
def test_no_text_gives_a_terminal_orders(color, stream, shown):
    console = Console(color, stdout=stream, stderr=stream)
    console.say(NASTY)
    console.token(TokenEvent(NASTY, 1, "target", 0))
    console.write(NASTY)
    assert stream.getvalue() == 2 * shown + shown + "\n"


def test_notes_and_progress_give_a_terminal_no_orders():
    err, clock = FakeTerminal(), FakeClock()
    console = Console("never", stdout=io.StringIO(), stderr=err, clock=clock)
    console.note(NASTY)
    assert err.getvalue() == SHOWN + "\n"
    progress(console, clock, 10, 0.1, 0.2, what="\x1b[2Jloading")
    assert "\x1b[2J" not in err.getvalue()
    assert "[2Jloading: 20%" in err.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_file_that_cannot_be_written_is_named():
    with refuses(EdgespecError):
        output.write_json("/dev/full", {"a": 1})


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (out := tmp_path / "out.json").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with refuses(EdgespecError):
        output.write_json(str(out), {"a": 1})
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]
