"""What is kept of a mixture's experts between runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.files.expert_shares import MOST_BYTES, MOST_FILES, ExpertSharesFile


def test_shares_come_back(tmp_path: Path) -> None:
    file = ExpertSharesFile(tmp_path / "experts", "one")
    file.keep([b"\x00\xff", b"\x01\x02"])
    assert ExpertSharesFile(tmp_path / "experts", "one").recall() == [b"\x00\xff", b"\x01\x02"]


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b"[]", b"7", b'{"shares": 7}', b'{"shares": [7]}', b'{"shares": ["0"]}', b"\xff",
     b" " * (MOST_BYTES + 1)],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_as_good_as_none(
    tmp_path: Path, content: bytes
) -> None:
    file = ExpertSharesFile(tmp_path, "one")
    file.path.write_bytes(content)
    assert file.recall() == []
    assert ExpertSharesFile(tmp_path, "none").recall() == []


def test_the_folder_keeps_those_that_were_written_last(tmp_path: Path) -> None:
    for n in range(MOST_FILES + 2):
        file = ExpertSharesFile(tmp_path, str(n))
        file.keep([bytes(4)])
        if file.path.exists():
            os.utime(file.path, (n, n))
    kept = {path.stem for path in tmp_path.glob("*.json")}
    assert len(kept) == MOST_FILES
    assert {"0", "1"} & kept == set()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    ExpertSharesFile(tmp_path / "file" / "below", "one").keep([bytes(4)])
