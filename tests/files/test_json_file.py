"""Facts of models that are kept between runs, and never in anybody's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.files.json_file import MAX_BYTES, JsonFile


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    JsonFile(tmp_path / "below", "one", 3).write({"shares": ["00"]})
    assert JsonFile(tmp_path / "below", "one", 3).read() == {"shares": ["00"]}


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[" * 100_000, b" " * (MAX_BYTES + 1)])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    file = JsonFile(tmp_path, "one", 3)
    file.path.write_bytes(content)
    assert file.read() is None
    assert JsonFile(tmp_path, "none", 3).read() is None


def test_a_changed_number_is_no_number(tmp_path: Path) -> None:
    """A plan would not hold with another size than was measured."""
    file = JsonFile(tmp_path, "one")
    file.write({"bytes": 1234, "share": 0.1})
    file.path.write_text(file.path.read_text().replace("1234", "1235"))
    assert file.read() is None


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    file = JsonFile(tmp_path, "one", 3)
    file.write("a" * MAX_BYTES)
    assert not file.path.exists()


def test_the_folder_keeps_those_that_were_written_last(tmp_path: Path) -> None:
    for n in range(5):
        file = JsonFile(tmp_path, str(n), 3)
        file.write(n)
        os.utime(file.path, (n, n))
    assert {path.stem for path in tmp_path.iterdir()} == {"2", "3", "4"}


def test_what_a_killed_process_had_begun_is_deleted(tmp_path: Path) -> None:
    """Such files had stayed in the cache folder for ever."""
    child = os.fork()
    if not child:
        Path.replace = lambda *_: os._exit(0)  # type: ignore[assignment]
        JsonFile(tmp_path, "one").write(1)
    os.waitpid(child, 0)
    (part,) = tmp_path.iterdir()
    os.utime(part, (1, 1))
    JsonFile(tmp_path, "two").write(2)
    assert [path.name for path in tmp_path.iterdir()] == ["two.json"]
