"""Processes that do the same count alike, though hundredths of a MiB differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.files import cache_folder
from edgespec.memory import stable_count as stable_count_module
from edgespec.memory.process import MIB, PROCESS_SPREAD_BYTES, STEP_BYTES, round_up_to_step
from edgespec.memory.stable_count import MAX_COUNTS, TOLERANCE_BYTES, stable_count

BORDER = 20 * STEP_BYTES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder.folder() / "process-bytes.json"


def count_of_a_new_process(nbytes: int, command: str = "a") -> int:
    stable_count_module._counted.clear()
    return stable_count(nbytes, command)


def test_counts_on_both_sides_of_a_step_are_one() -> None:
    """One of six identical processes named 105.3 MiB as the smallest budget, the others 109.4."""
    counts = [BORDER + kib * 1024 for kib in (8, -12, 3, -5, 12, -8)]
    assert len({round_up_to_step(count) for count in counts}) == 2
    assert len({round_up_to_step(count_of_a_new_process(count)) for count in counts}) == 1


def test_two_arenas_more_or_less_are_no_other_count() -> None:
    """Plans of a graph of 30 layers: 111.7 MiB in four processes of five, 113.5 in the other."""
    lower, higher = BORDER, BORDER + int(1.8 * MIB)
    assert [count_of_a_new_process(n) for n in (lower, higher, lower)] == [lower, higher, higher]


@pytest.mark.parametrize("others", [(-1.2, 1.24), (-0.6, 0.9), (1.2, 2.4)])
def test_the_budget_that_one_process_names_is_enough_for_the_next(
    others: tuple[float, float],
) -> None:
    """Between the counts of two other commands, processes alike took the lower or the higher one:
    2.4 MiB apart, more than the margin for differences between processes."""
    for i, other in enumerate(others):
        count_of_a_new_process(BORDER + int(other * MIB), f"other {i}")
    named = count_of_a_new_process(BORDER) + PROCESS_SPREAD_BYTES
    assert count_of_a_new_process(BORDER + MIB // 8) <= named


def test_a_process_that_has_grown_counts_for_itself() -> None:
    assert count_of_a_new_process(BORDER) == BORDER
    assert stable_count(BORDER + MIB, "a") == BORDER + MIB, "a model was there before"
    assert count_of_a_new_process(BORDER) == BORDER


def test_other_counts_stay_what_they_are() -> None:
    counts = [BORDER, BORDER + TOLERANCE_BYTES, BORDER - TOLERANCE_BYTES, BORDER + 9 * MIB]
    assert [count_of_a_new_process(count) for count in counts] == counts


def test_the_file_does_not_grow_for_ever(cache: Path) -> None:
    for i in range(MAX_COUNTS + 1):
        count_of_a_new_process(BORDER, f"command {i}")
    assert cache.stat().st_size < 4096
    assert count_of_a_new_process(BORDER - 9, "command 0") == BORDER - 9, "the oldest is forgotten"


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b'{"a": null}', b"[5]", b'{"a": -5}', b"7", b'{"a": 1e999}', b'{"a": []}'],
)
def test_a_damaged_file_is_written_anew(cache: Path, content: bytes) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    assert count_of_a_new_process(BORDER) == BORDER
    assert count_of_a_new_process(BORDER - 9) == BORDER


@pytest.mark.skipif(os.name == "nt", reason="a file as folder")
def test_without_a_cache_every_process_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    counts = [BORDER, BORDER - 9]
    assert [count_of_a_new_process(count) for count in counts] == counts
