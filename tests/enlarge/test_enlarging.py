"""The way to the tool that enlarges, not the tool."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgespec import tools
from edgespec.errors import UsageError
from edgespec.tools import enlarge
from edgespec.values import EnlargeReport
from sentences import refuses


class Copier:
    """A tool for files of one suffix, which changes nothing."""

    def recognises(self, source: Path) -> bool:
        return source.suffix == ".weights"

    def enlarge(self, source: Path, out: Path, size_bytes: int, progress: object) -> EnlargeReport:
        out.write_bytes(source.read_bytes())
        return EnlargeReport(out, size_bytes, 1, 24, 10)


copier = Copier()


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = [EntryPoint("gguf", value, "edgespec.tools") for value in values]
    monkeypatch.setattr(tools, "entry_points", lambda **query: found)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(monkeypatch, f"{__name__}:copier")
    path = tmp_path / "source.weights"
    path.write_bytes(b"weights")
    return path


def test_the_tool_that_knows_the_source_writes(source: Path, tmp_path: Path):
    assert enlarge(source, tmp_path / "out", 10).size_bytes == 10
    assert (tmp_path / "out").read_bytes() == b"weights"


def test_a_file_is_never_overwritten(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.write_bytes(b"precious")
    with refuses(UsageError):
        enlarge(source, out, 10)
    assert out.read_bytes() == b"precious"
