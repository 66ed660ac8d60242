"""The parts of the demo that run without a model."""

from __future__ import annotations

import io
import os
import signal
import struct
from pathlib import Path

import pytest

from edgespec.cli.commands import demo
from edgespec.cli.console import Console
from edgespec.errors import EdgespecError, ModelError
from edgespec.models.embedded import EmbeddedPair
from edgespec.values import TokenEvent

PAIR = EmbeddedPair(Path("t.gguf"), Path("d.gguf"), "0123456789abcdef")


@pytest.fixture
def console() -> Console:
    return Console("never", stdout=io.StringIO(), stderr=io.StringIO())


def test_the_target_is_enlarged_once(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = []

    def enlarge(source: Path, out: Path, size_bytes: int, progress: object) -> None:
        made.append(size_bytes)
        out.write_bytes(b"big")

    monkeypatch.setattr(demo, "enlarge", enlarge)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = demo.enlarged(PAIR, 64 << 20, console)
    assert demo.enlarged(PAIR, 64 << 20, console) == first
    assert demo.enlarged(PAIR, 32 << 20, console) != first
    assert made == [64 << 20, 32 << 20]
    assert first.parent == tmp_path / "edgespec"


def speak(send: demo.Send) -> str:
    send(("loading", 0.5))
    send(TokenEvent("word", 1, "target", 0))
    return "done"


def fail(send: demo.Send) -> None:
    raise ModelError("no such model")


def vanish(send: demo.Send) -> None:
    os._exit(9)


def test_a_task_runs_apart_and_is_heard():
    out = io.StringIO()
    assert (
        demo._apart("speaking", speak, (), Console("never", stdout=out, stderr=io.StringIO()))
        == "done"
    )
    assert out.getvalue() == "word"


def test_what_a_task_raises_is_raised_here(console: Console):
    with pytest.raises(ModelError, match="no such model"):
        demo._apart("failing", fail, (), console)


def test_a_process_that_vanishes_is_an_error(console: Console):
    with pytest.raises(EdgespecError, match=r"while planning \(exit code 9\)"):
        demo._apart("planning", vanish, (), console)


def crash(send: demo.Send, first: object) -> None:
    send(first)
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("first", "doing"),
    [(("reading the prompt", 0.5), "reading the prompt"), (TokenEvent("", 1, "target", 0), "gen")],
)
def test_a_process_that_crashes_says_by_what_and_while_doing_what(
    first: object, doing: str, console: Console
):
    with pytest.raises(EdgespecError, match=rf"while {doing}.*SIGSEGV.*pip install"):
        demo._apart("loading", crash, (first,), console)


def mumble(send: demo.Send) -> None:
    """Dies with a message half sent."""
    connection = send.__self__  # type: ignore[attr-defined]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"x")
    os._exit(9)


def test_a_process_that_ends_within_a_message_is_an_error(console: Console):
    with pytest.raises(EdgespecError, match="exit code 9"):
        demo._apart("planning", mumble, (), console)


def stumble(send: demo.Send) -> None:
    raise MemoryError("no room")


def test_what_nobody_expected_is_one_line(console: Console, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(EdgespecError, match="unexpected MemoryError: no room"):
        demo._apart("planning", stumble, (), console)
    assert not capfd.readouterr().err
