"""The sample that tells how fast a file can be read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from edgespec.paging.disk_speed import bytes_per_second
from edgespec.paging.reader import READ_BYTES


def make(folder: Path, nbytes: int) -> Path:
    path = folder / "weights"
    with path.open("wb") as file:
        file.truncate(nbytes)
    return path


def test_the_rate_is_bytes_over_time(tmp_path: Path):
    """A clock that jumps a quarter of a second per look is seen after each of two reads."""
    clock = itertools.count(0.0, 0.25).__next__
    path = make(tmp_path, 10 * READ_BYTES)
    assert bytes_per_second(path, sample_s=0.3, clock=clock) == pytest.approx(2 * READ_BYTES / 0.75)


def test_a_short_sample_ends_with_the_file(tmp_path: Path):
    rate = bytes_per_second(make(tmp_path, 3 * READ_BYTES), sample_s=60)
    assert rate is not None
    assert rate > 0


def test_a_small_file_tells_nothing(tmp_path: Path):
    assert bytes_per_second(make(tmp_path, 1000)) is None
