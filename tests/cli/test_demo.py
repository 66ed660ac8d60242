"""The parts of the demo that run without a model."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from edgespec.cli.commands import demo
from edgespec.cli.console import Console


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
    first = demo.enlarged(64 << 20, console)
    assert demo.enlarged(64 << 20, console) == first
    assert demo.enlarged(32 << 20, console) != first
    assert made == [64 << 20, 32 << 20]
    assert first.parent == tmp_path / "edgespec"


@pytest.mark.slow
def test_a_command_that_fails_says_so_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        demo.command("generate", "-m", "nothing.gguf", "-p", "x")
    assert end.value.code == 3
    assert capfd.readouterr().err.count("nothing.gguf") == 1


def test_the_comparison_says_how_many_times_and_whether_the_texts_are_the_same() -> None:
    alone = {"timings": {"tokens_per_s": 2.0}, "tokens": [1, 2]}
    drafted = {"timings": {"tokens_per_s": 6.0}, "tokens": [1, 2]}
    assert "3.0 times as fast; the same text" in demo.comparison(alone, drafted)
    assert "near tie" in demo.comparison(alone, drafted | {"tokens": [1, 3]})
