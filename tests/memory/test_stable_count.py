"""Processes that do the same count alike, though hundredths of a MiB differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.files import cache_folder
from edgespec.memory.process import MIB, STEP_BYTES, round_up_to_step
from edgespec.memory.stable_count import MAX_COUNTS, TOLERANCE_BYTES, stable_count

BORDER = 20 * STEP_BYTES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder.folder() / "process-bytes.json"


def test_counts_on_both_sides_of_a_step_are_one() -> None:
    """One of six identical processes named 105.3 MiB as the smallest budget, the others 109.4."""
    counts = [BORDER + kib * 1024 for kib in (8, -12, 3, -5, 12, -8)]
    assert len({round_up_to_step(count) for count in counts}) == 2
    assert len({round_up_to_step(stable_count(count)) for count in counts}) == 1


def test_other_counts_stay_what_they_are() -> None:
    counts = [BORDER, BORDER + TOLERANCE_BYTES, BORDER - TOLERANCE_BYTES, BORDER + 9 * MIB]
    assert [stable_count(count) for count in counts] == counts
    assert [stable_count(count + 9) for count in counts] == counts


def test_the_file_does_not_grow_for_ever(cache: Path) -> None:
    for i in range(2 * MAX_COUNTS):
        stable_count(BORDER + i * TOLERANCE_BYTES)
    assert cache.stat().st_size < 4096
    assert stable_count(BORDER + 9) == BORDER + 9, "the oldest is forgotten"


@pytest.mark.parametrize("content", [b"", b"[", b'{"a": 1}', b"[null]", b"[-5]", b"7", b"[1e999]"])
def test_a_damaged_file_is_written_anew(cache: Path, content: bytes) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    assert stable_count(BORDER) == BORDER
    assert stable_count(BORDER + 9) == BORDER


@pytest.mark.skipif(os.name == "nt", reason="a file as folder")
def test_without_a_cache_every_process_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [stable_count(BORDER), stable_count(BORDER + 9)] == [BORDER, BORDER + 9]
