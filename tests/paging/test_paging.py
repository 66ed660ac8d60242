"""The pager: right bytes in the right order, from slow, failing and short storage."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import WeightReadError
from edgespec.paging.pager import PinnedSegments, WeightPager
from edgespec.paging.reader import (
    BLOCK_BYTES,
    READ_BYTES,
    AlignedMemory,
    DirectReader,
    Extent,
    Run,
    Segment,
)
from sentences import refuses


def make_file(folder: Path, nbytes: int) -> Path:
    path = folder / "weights.bin"
    path.write_bytes(random.Random(nbytes).randbytes(nbytes))
    return path


def equal_segments(n: int, nbytes: int) -> list[Segment]:
    return [Segment(f"s{i}", [Extent(0, i * nbytes, nbytes)]) for i in range(n)]


def bytes_at(address: int | None, segment: Segment, extent: Extent) -> bytes:
    assert address is not None
    return ctypes.string_at(
        address + segment.locate(extent.file_index, extent.offset), extent.nbytes
    )


class SlowReader:
    """Delivers zeros after a delay, and remembers what was asked for."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.starts: list[int] = []
        self.is_closed = False

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        self.starts.append(run.start)
        time.sleep(self.delay_s)
        return run.nbytes

    def close(self) -> None:
        self.is_closed = True


class FailingReader(SlowReader):
    """Fails at one offset for a number of times."""

    def __init__(self, offset: int, times: int) -> None:
        super().__init__()
        self.offset, self.times = offset, times

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        if run.start == self.offset and self.times:
            self.times -= 1
            raise WeightReadError("the disk is on fire")
        return super().read(run, into, stopped)


@pytest.fixture
def pagers() -> Iterator[Callable[..., WeightPager]]:
    made: list[WeightPager] = []

    def make(segments: Sequence[Segment], reader: object, ring_bytes: int) -> WeightPager:
        made.append(WeightPager(segments, reader, ring_bytes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for pager in made:
        pager.close()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_segment_arrives_whole_in_every_pass(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Segments of random sizes and gaps, a ring from the least to everything, three passes."""
    sizes = data.draw(st.lists(st.integers(1, 30_000), min_size=1, max_size=8))
    gaps = data.draw(st.lists(st.integers(0, 9_000), min_size=len(sizes), max_size=len(sizes)))
    extents, offset = [], 0
    for size, gap in zip(sizes, gaps, strict=True):
        extents.append(Extent(0, offset + gap, size))
        offset += gap + size
    path = make_file(tmp_path_factory.mktemp("pager"), offset)
    content = path.read_bytes()
    segments = [Segment(str(i), [extent]) for i, extent in enumerate(extents)]
    least = max(segment.slot_bytes for segment in segments)
    ring_bytes = least + data.draw(st.integers(0, 3)) * least
    with closing(WeightPager(segments, DirectReader([path]), ring_bytes)) as pager:
        for _ in range(3):
            for i, (segment, extent) in enumerate(zip(segments, extents, strict=True)):
                expected = content[extent.offset : extent.offset + extent.nbytes]
                assert bytes_at(pager.acquire(i), segment, extent) == expected
                pager.release(i)


def test_a_pass_reads_each_streamed_byte_once(pagers: Callable[..., WeightPager]) -> None:
    segments = equal_segments(10, BLOCK_BYTES)
    reader = SlowReader()
    pager = pagers(segments, reader, 3 * BLOCK_BYTES)
    for _ in range(4):
        for i in range(10):
            pager.acquire(i)
            pager.release(i)
    pager.close()
    read_ahead = len(reader.starts) - 40
    assert 0 <= read_ahead <= 4
    assert pager.bytes_read == len(reader.starts) * BLOCK_BYTES


def test_reading_goes_on_across_the_end_of_a_pass(pagers: Callable[..., WeightPager]) -> None:
    reader = SlowReader()
    pager = pagers(equal_segments(3, BLOCK_BYTES), reader, 2 * BLOCK_BYTES)
    for i in range(3):
        pager.acquire(i)
        pager.release(i)
    deadline = time.monotonic() + 60
    while len(reader.starts) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(reader.starts[3:5]) == [0, BLOCK_BYTES]


class MeetingReader(SlowReader):
    """Delivers zeros once two reads are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2, timeout=60)

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        self.barrier.wait()
        return super().read(run, into, stopped)


def test_two_pieces_of_a_segment_are_read_at_once(pagers: Callable[..., WeightPager]) -> None:
    """While one thread is woken after its read, storage is busy with the other's."""
    segments = equal_segments(2, 4 * READ_BYTES)
    reader = MeetingReader()
    pager = pagers(segments, reader, 4 * READ_BYTES)
    assert pager.acquire(0) is not None
    assert sorted(reader.starts) == [n * READ_BYTES for n in range(4)]


def test_a_failed_read_does_not_fail_a_segment_that_is_still_read(
    pagers: Callable[..., WeightPager],
) -> None:
    """A thread reads the second segment, in vain, while the other reads the first."""
    failed = threading.Event()

    class LateReader(SlowReader):
        def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
            if run.start:
                failed.set()
                raise WeightReadError("the disk is on fire")
            failed.wait(60)
            time.sleep(0.05)
            return super().read(run, into, stopped)

    pager = pagers(equal_segments(2, BLOCK_BYTES), LateReader(), 2 * BLOCK_BYTES)
    assert pager.acquire(0) is not None
    pager.release(0)
    with pytest.raises(WeightReadError):
        pager.acquire(1)


def test_a_held_slot_is_not_overwritten(tmp_path: Path, pagers: Callable[..., WeightPager]) -> None:
    path = make_file(tmp_path, 8 * BLOCK_BYTES)
    segments = equal_segments(8, BLOCK_BYTES)
    pager = pagers(segments, DirectReader([path]), 2 * BLOCK_BYTES)
    held = pager.acquire(0)
    for i in range(1, 8):
        pager.acquire(i)
        pager.release(i)
        if i == 1:
            break
    time.sleep(0.02)
    assert bytes_at(held, segments[0], segments[0].extents[0]) == path.read_bytes()[:BLOCK_BYTES]


def test_acquiring_out_of_order_delivers_the_right_segment(
    tmp_path: Path, pagers: Callable[..., WeightPager]
) -> None:
    path = make_file(tmp_path, 6 * BLOCK_BYTES)
    content = path.read_bytes()
    segments = equal_segments(6, BLOCK_BYTES)
    pager = pagers(segments, DirectReader([path]), 3 * BLOCK_BYTES)
    for i in (0, 1, 0, 4, 2, 5, 0, 3):
        address = pager.acquire(i)
        expected = content[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]
        assert bytes_at(address, segments[i], segments[i].extents[0]) == expected
        pager.release(i)


@pytest.fixture
def alarm(pagers: Callable[..., WeightPager]) -> Iterator[Callable[[WeightPager], None]]:
    """A pager that waits in vain is cancelled: `acquire` returns None then."""
    timers: list[threading.Timer] = []

    def start(pager: WeightPager) -> None:
        timers.append(threading.Timer(5.0, pager.cancel))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.cancel()


def wait_until_full(pager: WeightPager, n_slots: int) -> None:
    while sum(slot.ready for slot in pager._slots) < n_slots:
        time.sleep(0.001)


def test_what_is_being_read_and_no_more_wanted_makes_room_when_it_has_come(
    pagers: Callable[..., WeightPager], alarm: Callable[[WeightPager], None]
) -> None:
    """The ring holds one segment, and the wrong one is on its way."""
    pager = pagers(equal_segments(2, BLOCK_BYTES), SlowReader(0.05), BLOCK_BYTES)
    alarm(pager)
    assert pager.acquire(1) is not None


def test_what_was_read_and_is_no_more_wanted_makes_room_at_once(
    pagers: Callable[..., WeightPager], alarm: Callable[[WeightPager], None]
) -> None:
    """The ring is full of segments that the consumer leaves out."""
    pager = pagers(equal_segments(4, BLOCK_BYTES), SlowReader(), 2 * BLOCK_BYTES)
    wait_until_full(pager, 2)
    alarm(pager)
    assert pager.acquire(3) is not None


def wait_until_read(reader: SlowReader, starts: list[int]) -> None:
    deadline = time.monotonic() + 60
    while sorted(reader.starts) != starts:
        assert time.monotonic() < deadline, f"{reader.starts} were read, not {starts}"
        time.sleep(0.001)


@pytest.mark.parametrize("skips", [False, True], ids=["released", "skipped"])
def test_what_makes_room_is_read_over_before_anybody_asks(
    pagers: Callable[..., WeightPager], skips: bool
) -> None:
    """Computing on a segment hides the reads of those behind it."""
    reader = SlowReader()
    pager = pagers(equal_segments(3, BLOCK_BYTES), reader, 2 * BLOCK_BYTES)
    wait_until_full(pager, 2)
    if skips:
        pager.acquire(1)
    else:
        pager.acquire(0)
        pager.release(0)
    wait_until_read(reader, [0, BLOCK_BYTES, 2 * BLOCK_BYTES])


def test_waiting_for_slow_storage_is_counted_as_stall(pagers: Callable[..., WeightPager]) -> None:
    pager = pagers(equal_segments(2, BLOCK_BYTES), SlowReader(0.05), BLOCK_BYTES)
    for i in (0, 1):
        pager.acquire(i)
        pager.release(i)
    assert pager.stall_s > 0.05


def test_a_failed_read_reaches_the_consumer_and_the_next_attempt_may_succeed(
    pagers: Callable[..., WeightPager],
) -> None:
    reader = FailingReader(offset=BLOCK_BYTES, times=2)
    pager = pagers(equal_segments(3, BLOCK_BYTES), reader, 2 * BLOCK_BYTES)
    pager.acquire(0)
    pager.release(0)
    with pytest.raises(WeightReadError):
        pager.acquire(1)
    assert pager.acquire(1) is not None


def test_a_file_that_was_cut_short_is_reported_with_both_lengths(tmp_path: Path) -> None:
    path = make_file(tmp_path, 3 * BLOCK_BYTES)
    reader = DirectReader([path])
    pager = WeightPager(equal_segments(4, BLOCK_BYTES), reader, 4 * BLOCK_BYTES)
    with closing(pager), refuses(WeightReadError):
        pager.acquire(3)


def test_the_last_block_may_reach_past_the_end_of_the_file(tmp_path: Path) -> None:
    path = make_file(tmp_path, BLOCK_BYTES + 10)
    pinned = PinnedSegments()
    segment = Segment("s", [Extent(0, BLOCK_BYTES - 5, 15)])
    reader = DirectReader([path])
    address = pinned.load(segment, reader, lambda: False)
    assert bytes_at(address, segment, segment.extents[0]) == path.read_bytes()[-15:]
    reader.close()
    pinned.close()


def test_cancelling_wakes_a_waiting_consumer(pagers: Callable[..., WeightPager]) -> None:
    pager = pagers(equal_segments(2, BLOCK_BYTES), SlowReader(0.5), BLOCK_BYTES)
    threading.Timer(0.02, pager.cancel).start()
    assert pager.acquire(0) is None
    pager.resume()
    assert pager.acquire(0) is not None


def test_closing_ends_the_thread_while_it_reads() -> None:
    reader = SlowReader(0.05)
    before = threading.active_count()
    pager = WeightPager(equal_segments(2, BLOCK_BYTES), reader, BLOCK_BYTES)
    pager.close()
    assert reader.is_closed
    assert threading.active_count() == before


def test_a_file_that_was_cut_while_it_was_open_is_reported_with_its_length(tmp_path: Path) -> None:
    path = make_file(tmp_path, 4 * BLOCK_BYTES)
    reader = DirectReader([path])
    os.truncate(path, BLOCK_BYTES // 2)
    with refuses(WeightReadError):
        read_last_block(reader)
    reader.close()


def test_a_file_that_was_overwritten_in_place_is_noticed(tmp_path: Path) -> None:
    path = make_file(tmp_path, 4 * BLOCK_BYTES)
    reader = DirectReader([path])
    assert read_last_block(reader) == BLOCK_BYTES
    with path.open("r+b") as file:
        file.write(b"other weights")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))  # clocks of files are coarse
    with refuses(WeightReadError):
        read_last_block(reader)
    reader.close()


def read_last_block(reader: DirectReader) -> int:
    with closing(AlignedMemory(BLOCK_BYTES)) as memory:
        run = Run(0, 3 * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, 0)
        with memory.view(0, BLOCK_BYTES) as view:
            return reader.read(run, view, lambda: False)
