"""A copy on another disk is read together with the model, and delivers the same bytes."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.errors import ModelError, WeightReadError
from edgespec.paging.mirror import MIN_PART_BYTES, MirroredReader, find_mirror, open_reader
from edgespec.paging.reader import BLOCK_BYTES, AlignedMemory, Extent, Run, Segment, read_segment

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(random.Random(3).randbytes(3 * MIB + 700))
    return path


@pytest.fixture
def copy(model: Path) -> Path:
    folder = model.parent / "other disk"
    folder.mkdir()
    return Path(shutil.copy(model, folder))


class OnAClock:
    """A reader of so many bytes a second, on the clock of the thread that reads."""

    times = threading.local()

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.runs: list[Run] = []

    @classmethod
    def clock(cls) -> float:
        return getattr(cls.times, "now", 0.0)

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        self.runs.append(run)
        type(self).times.now = self.clock() + run.nbytes / self.bytes_per_s
        return run.nbytes

    def close(self) -> None: ...


class Waits(OnAClock):
    """A reader whose reads end when `all_asked` says that no more is asked for."""

    def __init__(self, asked: threading.Semaphore, all_asked: threading.Event) -> None:
        super().__init__(MIB)
        self.asked, self.all_asked = asked, all_asked

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        self.runs.append(run)
        self.asked.release()
        self.all_asked.wait()
        return run.nbytes


class Fails(OnAClock):
    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        raise WeightReadError("the disk is gone")


def read_often(first: OnAClock, second: OnAClock, nbytes: int, times: int) -> None:
    reader = MirroredReader(first, second, OnAClock.clock)
    run = Run(0, 0, nbytes, nbytes, 0)
    for _ in range(times):
        assert reader.read(run, memoryview(bytearray(nbytes)), lambda: False) == nbytes
    reader.close()


@pytest.mark.parametrize("beginning", [0, 5000, MIB])
def test_the_bytes_are_the_models(model: Path, copy: Path, beginning: int) -> None:
    size = model.stat().st_size
    segment = Segment("s", [Extent(0, beginning, size - beginning)])
    memory = AlignedMemory(segment.slot_bytes)
    reader = open_reader([model], [copy])
    for _ in range(3):
        memory.forget()
        assert read_segment(reader, segment, memory, 0, lambda: False) == size - (
            beginning - beginning % BLOCK_BYTES
        )
        start = segment.locate(0, beginning)
        assert memory.view(start, size - beginning) == model.read_bytes()[beginning:]
    reader.close()


def test_both_read_half_at_first() -> None:
    first, second = OnAClock(100 * MIB), OnAClock(300 * MIB)
    read_often(first, second, 4 * MIB, 1)
    assert [run.nbytes for run in first.runs + second.runs] == [2 * MIB, 2 * MIB]


def test_the_faster_disk_reads_more() -> None:
    first, second = OnAClock(100 * MIB), OnAClock(300 * MIB)
    read_often(first, second, 4 * MIB, 3)
    assert first.runs[-1].nbytes == 1 * MIB
    assert second.runs[-1] == Run(0, 1 * MIB, 3 * MIB, 3 * MIB, 0)


def test_a_disk_that_grows_slower_reads_less() -> None:
    first, second = OnAClock(300 * MIB), OnAClock(300 * MIB)
    reader = MirroredReader(first, second, OnAClock.clock)
    run = Run(0, 0, 4 * MIB, 4 * MIB, 0)
    for n in range(30):
        first.bytes_per_s = (300 if n < 5 else 100) * MIB
        reader.read(run, memoryview(bytearray(4 * MIB)), lambda: False)
    assert first.runs[-1].nbytes == pytest.approx(1 * MIB, rel=0.05)
    reader.close()


def test_several_threads_read_at_once(model: Path, copy: Path) -> None:
    reader, size = open_reader([model], [copy]), 3 * MIB
    memory = AlignedMemory(8 * size)  # as direct reads need it

    def read(block: int) -> None:
        for start in range(0, size, MIB):
            with memory.view(block * size + start, MIB) as into:
                reader.read(Run(0, start, MIB, MIB, 0), into, lambda: False)

    threads = [threading.Thread(target=read, args=[block]) for block in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(memory.view(n * size, size) == model.read_bytes()[:size] for n in range(8))
    reader.close()


def test_small_reads_are_not_divided() -> None:
    first, second = OnAClock(100 * MIB), OnAClock(100 * MIB)
    read_often(first, second, MIN_PART_BYTES, 3)
    assert [run.nbytes for run in first.runs] == [MIN_PART_BYTES] * 3
    assert not second.runs


def test_small_reads_at_once_go_to_both_disks() -> None:
    """Experts are smaller than what is divided: all of them came from one disk."""
    asked, all_asked = threading.Semaphore(0), threading.Event()
    first, second = Waits(asked, all_asked), Waits(asked, all_asked)
    reader = MirroredReader(first, second)
    run = Run(0, 0, MIN_PART_BYTES, MIN_PART_BYTES, 0)
    into = memoryview(bytearray(MIN_PART_BYTES))
    threads = [
        threading.Thread(target=reader.read, args=(run, into, lambda: False)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
        asked.acquire()
    all_asked.set()
    for thread in threads:
        thread.join()
    reader.close()
    assert (len(first.runs), len(second.runs)) == (2, 2)


@pytest.mark.parametrize(
    ("first", "second"), [(OnAClock(MIB), Fails(MIB)), (Fails(MIB), OnAClock(MIB))]
)
def test_an_error_of_either_disk_is_raised(first: OnAClock, second: OnAClock) -> None:
    with pytest.raises(WeightReadError, match="gone"):
        read_often(first, second, 4 * MIB, 1)


def test_a_file_or_its_folder_names_the_copy(model: Path, copy: Path) -> None:
    assert find_mirror([model], copy) == find_mirror([model], copy.parent) == [copy]


def test_another_model_is_no_copy(model: Path, copy: Path) -> None:
    changed = bytearray(copy.read_bytes())
    changed[2 * MIB : 2 * MIB + 8192] = bytes(8192)
    copy.write_bytes(changed)
    with pytest.raises(ModelError, match=r"no copy of .*model\.gguf: copy it again"):
        find_mirror([model], copy)


def test_a_missing_copy_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        find_mirror([model], tmp_path / "nowhere.gguf")


def test_a_file_is_no_copy_of_several(model: Path, copy: Path) -> None:
    with pytest.raises(ModelError, match="2 parts: name the folder"):
        find_mirror([model, model], copy)
