"""Segments lie in their slots where they are located; files are opened or refused."""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import WeightReadError
from edgespec.memory.cgroups import table
from edgespec.paging.reader import (
    BLOCK_BYTES,
    AlignedMemory,
    DirectReader,
    Extent,
    ReadLimit,
    Segment,
    read_segment,
)


def test_neighbouring_extents_are_read_as_one_run() -> None:
    segment = Segment("s", [Extent(0, 100, 50), Extent(0, 150, BLOCK_BYTES), Extent(1, 0, 10)])
    assert [(run.file_index, run.start, run.nbytes) for run in segment.runs] == [
        (0, 0, 2 * BLOCK_BYTES),
        (1, 0, BLOCK_BYTES),
    ]


def test_an_extent_within_another_one_shortens_no_run() -> None:
    segment = Segment("s", [Extent(0, 0, 3 * BLOCK_BYTES), Extent(0, 100, 50)])
    assert [run.nbytes for run in segment.runs] == [3 * BLOCK_BYTES]


def test_distant_extents_are_separate_runs_and_are_located_in_the_slot() -> None:
    segment = Segment("s", [Extent(0, 100, 50), Extent(0, 1_000_000, 10)])
    assert len(segment.runs) == 2
    assert segment.locate(0, 100) == 100
    assert segment.locate(0, 1_000_000) == BLOCK_BYTES + 1_000_000 % BLOCK_BYTES


def test_locating_a_byte_that_the_segment_does_not_hold_is_refused() -> None:
    with pytest.raises(KeyError):
        Segment("s", [Extent(0, 0, 10)]).locate(0, BLOCK_BYTES)


FILE_BYTES = 2 * BLOCK_BYTES + 700


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(random.Random(3).randbytes(FILE_BYTES))
    return path


def whole(reader: DirectReader) -> bytes:
    """The file, read as a segment."""
    segment = Segment("s", [Extent(0, 0, FILE_BYTES)])
    with AlignedMemory(segment.slot_bytes) as memory:
        assert read_segment(reader, segment, memory, lambda: False) == FILE_BYTES
        return bytes(memory.view(0, FILE_BYTES))


def test_readers_under_one_limit_take_as_long_together_as_on_such_a_disk(weights: Path) -> None:
    limit, began = ReadLimit(FILE_BYTES / 0.05), time.perf_counter()
    for _ in range(2):
        with DirectReader([weights], limit) as reader:
            assert whole(reader) == weights.read_bytes()
    assert time.perf_counter() - began >= 0.1


def test_a_run_that_is_longer_than_one_read_arrives_whole(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.paging.reader.READ_BYTES", BLOCK_BYTES)
    with DirectReader([weights]) as reader:
        assert whole(reader) == weights.read_bytes()


def fail_with_einval(
    monkeypatch: pytest.MonkeyPatch, call: str, is_refused: Callable[..., bool]
) -> None:
    """Refuse direct reads, as some file systems do on opening a file and others on reading it."""
    real = getattr(os, call)

    def refusing(*arguments: Any) -> Any:
        if is_refused(*arguments):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(*arguments)

    monkeypatch.setattr(os, call, refusing)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct reads here")
def test_where_no_file_can_be_opened_for_direct_reads_it_is_read_plainly(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with_einval(monkeypatch, "open", lambda path, flags, *_: bool(flags & os.O_DIRECT))
    with DirectReader([weights]) as reader:
        assert whole(reader) == weights.read_bytes()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct reads here")
def test_where_direct_reads_are_refused_the_file_is_read_plainly(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    refused: list[int] = []

    def is_direct(descriptor: int, *_: object) -> bool:
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        refused.extend([descriptor] * is_direct)
        return is_direct

    with DirectReader([weights]) as reader:
        if not reader._files[0].is_direct:
            pytest.skip("the file system of the test has no direct reads")
    fail_with_einval(monkeypatch, "preadv", is_direct)
    with DirectReader([weights]) as reader:
        assert [whole(reader), whole(reader)] == [weights.read_bytes()] * 2
    assert len(refused) == 1


def test_a_read_that_fails_is_told(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectReader([weights]) as reader:
        fail_with_einval(monkeypatch, "preadv", lambda *_: True)
        with pytest.raises(WeightReadError):
            whole(reader)


def test_memory_that_was_forgotten_reads_as_zero() -> None:
    memory = AlignedMemory(BLOCK_BYTES)
    memory.view(0, 4)[:] = b"full"
    memory.forget()
    assert bytes(memory.view(0, 4)) == b"\0\0\0\0"
    memory.close()


def test_closing_memory_that_a_failure_still_looks_into_lets_the_failure_through() -> None:
    with pytest.raises(WeightReadError) as raised, AlignedMemory(BLOCK_BYTES) as memory:
        fails_looking_into(memory)
    kept = raised.traceback[-1].locals["view"]
    assert bytes(kept[:4]) == b"\0\0\0\0", "its pages were given back"
    memory.close()


def fails_looking_into(memory: AlignedMemory) -> None:
    view = memory.view(0, BLOCK_BYTES)
    view[:4] = b"full"
    raise WeightReadError("cut short")


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")
def test_memory_is_given_back_where_advice_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS maps the pages anew."""

    def resident() -> int:
        return table(Path("/proc/self/status"))["VmRSS"]

    with closing(AlignedMemory(8 << 20)) as memory:
        memory.view(0, 8 << 20)[:] = b"x" * (8 << 20)
        before = resident()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "darwin")
            memory.forget(1 << 20)
        assert before - resident() > 6 << 20
        assert bytes(memory.view(0, 1)) == b"x" and bytes(memory.view(1 << 20, 1)) == b"\0"
