"""Segments of which only the lower bits are read, and merged with what is in memory."""

from __future__ import annotations

import ctypes
import random
from functools import partial
from pathlib import Path

import pytest

from edgespec.errors import WeightReadError
from edgespec.paging.pager import WeightPager
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Extent, NestedRun, Run, Segment

N_BYTES = 3 * BLOCK_BYTES + 100
"""Bytes of nested weights; as many whole ones follow."""
WHOLE = random.Random(0).randbytes(2 * N_BYTES)
LOWER = random.Random(1).randbytes(N_BYTES // 2)


class Upper:
    """Weights whose bytes are those of WHOLE where the lower ones, each read once, are right."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def merge(self, lower: memoryview, out: memoryview) -> None:
        if self.error:
            raise self.error
        assert bytes(lower) == LOWER
        out[:] = WHOLE[:N_BYTES]


@pytest.fixture
def upper() -> Upper:
    return Upper()


@pytest.fixture
def pager(tmp_path: Path, upper: Upper):
    whole, lower = tmp_path / "whole", tmp_path / "lower"
    whole.write_bytes(WHOLE)
    lower.write_bytes(b"before" + LOWER)
    run = Run(1, 0, BLOCK_BYTES * 2, 6 + len(LOWER), 6)
    nested = NestedRun(run, len(LOWER), 0, N_BYTES, upper.merge)
    (rest,) = Segment("", [Extent(0, N_BYTES, N_BYTES)]).runs
    pieces = (nested, Run(0, rest.start, rest.nbytes, rest.needed, rest.start))
    segments = [Segment(f"{i}", [Extent(0, 0, 2 * N_BYTES)], pieces) for i in range(2)]
    with WeightPager(segments, DirectReader([whole, lower]), 3 * segments[0].slot_bytes) as pager:
        yield pager


def content(pager: WeightPager, index: int) -> bytes:
    address = pager.acquire(index)
    assert address is not None
    found = ctypes.string_at(address, len(WHOLE))
    pager.release(index)
    return found


def test_the_slot_has_the_files_bytes(pager: WeightPager) -> None:
    for index in (0, 1, 0):
        assert content(pager, index) == WHOLE
    assert pager.merge_s > 0


def test_only_the_lower_bits_count_as_read(pager: WeightPager) -> None:
    segment = pager._segments[0]
    assert segment.read_bytes == 6 * BLOCK_BYTES
    assert segment.slot_bytes == 7 * BLOCK_BYTES


def test_a_merge_that_fails_reaches_the_consumer(pager: WeightPager, upper: Upper) -> None:
    upper.error = WeightReadError("not these")
    indices = [0, 1] * 4  # some are read ahead
    with pytest.raises(WeightReadError):
        list(map(partial(content, pager), indices))
    upper.error = None
    assert content(pager, 0) == WHOLE
