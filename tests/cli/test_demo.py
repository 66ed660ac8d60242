"""The parts of the demo that run without a model."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from edgespec.cli import demo
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
    assert demo._apart(speak, (), Console("never", stdout=out, stderr=io.StringIO())) == "done"
    assert out.getvalue() == "word"


def test_what_a_task_raises_is_raised_here(console: Console):
    with pytest.raises(ModelError, match="no such model"):
        demo._apart(fail, (), console)


def test_a_process_that_vanishes_is_an_error(console: Console):
    with pytest.raises(EdgespecError, match="code 9"):
        demo._apart(vanish, (), console)
