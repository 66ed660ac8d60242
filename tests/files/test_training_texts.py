"""Files of kept texts: private, bounded, and what a killed process left is skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.files import training_texts
from edgespec.files.training_texts import Correction, TrainingText, TrainingTexts, digest
from edgespec.values import ModelInfo

TARGET = ModelInfo("target", "llama", n_vocab=100, n_ctx=8, n_layers=6, size_bytes=60)
DRAFT = ModelInfo("draft", "llama", n_vocab=100, n_ctx=8, n_layers=2, size_bytes=20)
TEXT = TrainingText([5, 6, 7, 8], 2, [Correction(3, [8, 1], [0.75, 0.125])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "learnt"


@pytest.fixture
def kept(folder: Path) -> TrainingTexts:
    return TrainingTexts(folder)


def of_pair(kept: TrainingTexts) -> list[TrainingText]:
    return kept.texts(DRAFT, digest(TARGET))


def test_texts_come_back_in_their_order(kept: TrainingTexts) -> None:
    other = TrainingText([1, 2, 3], 1, [])
    kept.keep(TARGET, DRAFT, Path("/models/t.gguf"), TEXT)
    kept.keep(TARGET, DRAFT, Path("/models/t.gguf"), other)
    assert of_pair(kept) == [TEXT, other]
    (pair,) = kept.pairs(DRAFT)
    assert (pair.target, pair.draft, pair.target_path) == ("target", "draft", "/models/t.gguf")


def test_each_pair_has_its_own(kept: TrainingTexts) -> None:
    larger = replace(TARGET, size_bytes=61)
    kept.keep(TARGET, DRAFT, None, TEXT)
    kept.keep(larger, DRAFT, None, TEXT)
    kept.keep(TARGET, replace(DRAFT, name="adapted"), None, TEXT)
    assert len(of_pair(kept)) == 1
    assert {pair.target_digest for pair in kept.pairs(DRAFT)} == {digest(TARGET), digest(larger)}


def test_only_their_owner_can_read_them(kept: TrainingTexts, folder: Path) -> None:
    kept.keep(TARGET, DRAFT, None, TEXT)
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


@pytest.mark.parametrize(
    "torn",
    [
        b'\n{"prompt":2,"tok',
        b"\n[1, 2]",
        b'\n{"prompt":2,"tokens":[1,2,-3],"said":[]}',
        b'\n{"prompt":0,"tokens":[1,2],"said":[]}',
        b'\n{"prompt":1,"tokens":[1,2],"said":[[7,[1],[5]]]}',
        b"\n\xff\xfe",
    ],
)
def test_what_is_damaged_is_skipped(kept: TrainingTexts, folder: Path, torn: bytes) -> None:
    kept.keep(TARGET, DRAFT, None, TEXT)
    (path,) = folder.iterdir()
    with path.open("ab") as file:
        file.write(torn)
    kept.keep(TARGET, DRAFT, None, TEXT)
    assert of_pair(kept) == [TEXT, TEXT]


def test_the_oldest_go_when_there_are_too_many(
    kept: TrainingTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_texts, "FILE_BYTES", 400)
    monkeypatch.setattr(training_texts, "MAX_BYTES", 2000)
    for n in range(100):
        kept.keep(TARGET, DRAFT, None, replace(TEXT, tokens=[5, 6, 7, n]))
        assert kept.nbytes <= 2000
    left = [text.tokens[-1] for text in of_pair(kept)]
    assert left == list(range(left[0], 100)) and left[0] > 50


def test_forgetting_deletes_all(kept: TrainingTexts, folder: Path) -> None:
    assert kept.forget() == 0
    kept.keep(TARGET, DRAFT, None, TEXT)
    nbytes = kept.nbytes
    assert kept.forget() == nbytes > 0
    assert not list(folder.iterdir()) and of_pair(kept) == []


def test_a_link_is_not_followed(kept: TrainingTexts, folder: Path, tmp_path: Path) -> None:
    kept.keep(TARGET, DRAFT, None, TEXT)
    (path,) = folder.iterdir()
    path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        kept.keep(TARGET, DRAFT, None, TEXT)
    assert elsewhere.read_text() == "mine"
