"""Which files a corpus has, and their texts in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.corpus import texts
from edgespec.corpus.texts import pieces, text_files
from edgespec.errors import UsageError


def test_a_folder_gives_its_text_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.txt").write_text("text")
    (tmp_path / "a.py").write_text("text")
    (tmp_path / "empty").touch()
    (tmp_path / ".hidden").write_text("text")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("text")
    (tmp_path / "image").write_bytes(b"text\0")
    (tmp_path / "latin").write_bytes("Müller".encode("latin-1"))
    (tmp_path / "link").symlink_to(tmp_path / "a.py")
    names = [file.path.name for file in text_files([tmp_path])]
    assert names == ["a.py", "b.txt"]


def test_a_folder_without_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no text file"):
        text_files([tmp_path])


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        text_files([tmp_path / "nowhere.txt"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="FIFO"):
        text_files([tmp_path / "fifo"])


def test_pieces_are_the_text_cut_between_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PIECE_BYTES", 7)
    text = "ein\nzwei\ndrölf\nschön\nund eine lange Zeile\n€€€"
    path = tmp_path / "a.txt"
    path.write_text(text)
    (file,) = text_files([path])
    cut = list(pieces(file))
    assert "".join(cut) == text
    assert len(cut) > 3
    assert cut[0] == "ein\n"


def test_a_named_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe")
    (file,) = text_files([path])
    with pytest.raises(UsageError, match="not UTF-8"):
        list(pieces(file))


def test_of_a_folder_s_file_what_is_text_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PIECE_BYTES", 8)
    monkeypatch.setattr(texts, "LOOK_BYTES", 4)
    (tmp_path / "a.txt").write_bytes(b"a line.\nanother\xff")
    (file,) = text_files([tmp_path])
    assert list(pieces(file)) == ["a line.\n"]
