"""The way to the tool that enlarges, not the tool."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgespec import enlarging
from edgespec.enlarging import enlarge
from edgespec.errors import EdgespecError, UsageError


def copy(source: Path, out: Path, size_bytes: int, progress: object) -> None:
    """A tool that changes nothing."""
    out.write_bytes(source.read_bytes())


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = [EntryPoint("enlarge", value, "edgespec.tools") for value in values]
    monkeypatch.setattr(enlarging, "entry_points", lambda **query: found)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(monkeypatch, f"{__name__}:copy")
    path = tmp_path / "source"
    path.write_bytes(b"weights")
    return path


def test_the_tool_of_the_entry_point_writes_the_file(source: Path, tmp_path: Path):
    enlarge(source, tmp_path / "out", 10)
    assert (tmp_path / "out").read_bytes() == b"weights"


def test_a_file_is_overwritten_only_on_request(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="--force"):
        enlarge(source, out, 10)
    assert out.read_bytes() == b"precious"
    enlarge(source, out, 10, overwrite=True)
    assert out.read_bytes() == b"weights"


@pytest.mark.parametrize("values", [(), ("no_such_module:enlarge",)])
def test_without_the_tool_the_error_names_the_extra(monkeypatch, tmp_path: Path, values):
    install(monkeypatch, *values)
    with pytest.raises(EdgespecError, match=r"edgespec\[gguf\]"):
        enlarge(tmp_path / "source", tmp_path / "out", 10)
