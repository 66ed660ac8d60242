"""Coded copies of weights: the same bytes as the model's own, from less of them, or one refusal."""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import EdgespecError, ModelError
from edgespec.paging import coded_file
from edgespec.paging.coded_file import CodedFile, open_coded, write_coded
from edgespec.paging.coded_reader import (
    READ_PIECES,
    CodedIndex,
    CodedReader,
    decoded_bytes_per_s,
)
from edgespec.paging.coding import MOST_CODED_BYTES, PIECE_BYTES, Decoder, Encoder
from edgespec.paging.pager import WeightPager
from edgespec.paging.reader import (
    BLOCK_BYTES,
    DirectReader,
    Extent,
    Memory,
    Segment,
    read_segment,
)

pytest.importorskip("zstandard")
SOURCE = hashlib.sha256(b"a model").hexdigest()


def half_precision(n: int, seed: int = 0) -> np.ndarray:
    """Bytes of so many weights as models have them: of BF16, uint8 [2 * n]."""
    values = np.random.default_rng(seed).standard_normal(n, np.float32) * 0.02
    return (values.view("<u4") >> 16).astype("<u2").view(np.uint8)


def decoded(frame: bytes, nbytes: int) -> np.ndarray | None:
    piece = np.zeros(nbytes, np.uint8)
    return piece if Decoder().decode(memoryview(frame), piece) else None


@pytest.mark.parametrize("nbytes", [2, 4098, PIECE_BYTES - 2, PIECE_BYTES])
def test_a_piece_comes_back_bit_for_bit(nbytes: int) -> None:
    piece = half_precision(nbytes // 2)
    assert np.array_equal(decoded(Encoder().encode(piece), nbytes), piece)


def test_half_precision_takes_less_than_three_quarters() -> None:
    assert len(Encoder().encode(half_precision(PIECE_BYTES // 2))) < 0.75 * PIECE_BYTES


def test_a_mantissa_that_is_partly_empty_is_coded_too() -> None:
    """As of BF16 that is stored as F16."""
    values = half_precision(PIECE_BYTES // 2).view("<u2").astype("<u4") << 16
    piece = values.view("<f4").astype("<f2").view(np.uint8)
    coded = Encoder().encode(piece)
    assert len(coded) < 0.75 * PIECE_BYTES
    assert np.array_equal(decoded(coded, PIECE_BYTES), piece)


def test_what_cannot_be_made_smaller_hardly_grows() -> None:
    noise = np.frombuffer(random.Random(0).randbytes(PIECE_BYTES), np.uint8)
    frame = Encoder().encode(noise)
    assert PIECE_BYTES < len(frame) <= MOST_CODED_BYTES
    assert np.array_equal(decoded(frame, PIECE_BYTES), noise)


FRAME = Encoder().encode(half_precision(5000))


@settings(max_examples=60)
@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_a_byte_that_changed_is_noticed(at: int, difference: int) -> None:
    damaged = bytearray(FRAME)
    damaged[at] ^= difference
    piece = decoded(bytes(damaged), 10_000)
    assert piece is None or np.array_equal(piece, half_precision(5000))


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_rubbish_is_no_piece(rubbish: bytes) -> None:
    assert decoded(FRAME[:12] + rubbish, 10_000) is None
    assert decoded(rubbish, 10_000) is None


@pytest.mark.parametrize("nbytes", [9_998, 10_002])
def test_a_piece_of_another_size_is_refused(nbytes: int) -> None:
    assert decoded(FRAME, nbytes) is None


class Copied:
    """Two files of weights, some of whose extents are coded."""

    def __init__(self, folder: Path) -> None:
        sizes = [100_000, 3 * READ_PIECES * PIECE_BYTES + 5_000, 40, PIECE_BYTES, 64, 9_000]
        self.paths, self.extents, self.content = [], [], []
        for number in range(2):
            offset, parts = 1_000, [bytes(1_000)]
            for i, nbytes in enumerate(sizes):
                self.extents.append(Extent(number, offset, nbytes))
                parts.append(half_precision(nbytes // 2, seed=10 * number + i).tobytes())
                offset += nbytes
            path = folder / f"weights-{number}.bin"
            path.write_bytes(b"".join(parts))
            self.paths.append(path)
            self.content.append(path.read_bytes())
        self.chosen = [self.extents[i] for i in (0, 1, 3, 5, 7, 9)]
        self.path = folder / "copy.coded"
        write_coded(self.path, self.paths, SOURCE, self.chosen)

    def open(self) -> CodedFile:
        return open_coded(self.path)

    def bytes_of(self, extent: Extent) -> bytes:
        end = extent.offset + extent.nbytes
        return self.content[extent.file_index][extent.offset : end]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    return Copied(tmp_path_factory.mktemp("coded"))


def read_back(copied: Copied, extents: Sequence[Extent]) -> tuple[list[bytes], int]:
    segment = Segment("s", extents)
    memory = Memory(segment.slot_bytes)
    with CodedReader(copied.paths, CodedIndex(copied.open())) as reader:
        n = read_segment(reader, segment, memory, 0, lambda: False)
    found = []
    for extent in extents:
        start = segment.locate(extent.file_index, extent.offset)
        found.append(bytes(memory.view(start, extent.nbytes)))
    return found, n


@pytest.mark.parametrize(
    "chosen",
    [[0], [1], [2], [0, 1], [1, 2, 3], [0, 1, 2, 3, 4, 5], [1, 7], list(range(12))],
    ids=str,
)
def test_a_slot_holds_the_models_own_bytes(copied: Copied, chosen: list[int]) -> None:
    """Of coded extents, of others, and of both in a run."""
    extents = [copied.extents[i] for i in chosen]
    found, _ = read_back(copied, extents)
    assert found == [copied.bytes_of(extent) for extent in extents]


def test_what_storage_delivers_is_what_the_index_says(copied: Copied) -> None:
    """But for the ends of files, which reach into their last blocks."""
    segment = Segment("s", copied.extents[:4])
    _, n = read_back(copied, copied.extents[:4])
    assert n == CodedIndex(copied.open()).read_bytes(segment.runs)
    assert n < 0.75 * segment.nbytes


def test_a_copy_knows_whose_it_is_and_of_what(copied: Copied) -> None:
    coded = copied.open()
    assert coded.source == SOURCE
    assert list(coded.extents) == copied.chosen
    assert coded.share == pytest.approx(coded.coded_bytes / sum(e.nbytes for e in copied.chosen))


def test_a_pager_streams_what_is_coded(copied: Copied) -> None:
    segments = [Segment(f"{i}", [extent]) for i, extent in enumerate(copied.extents[:6])]
    ring = 2 * max(segment.slot_bytes for segment in segments)
    reader = CodedReader(copied.paths, CodedIndex(copied.open()))
    with WeightPager(segments, reader, ring) as pager:
        for _ in range(2):
            for i, segment in enumerate(segments):
                address = pager.acquire(i)
                assert address is not None
                (extent,) = segment.extents
                start = address - pager.ring_address + segment.locate(0, extent.offset)
                assert bytes(pager._ring.view(start, extent.nbytes)) == copied.bytes_of(extent)
                pager.release(i)


def test_a_reader_that_is_stopped_ends_early(copied: Copied) -> None:
    segment = Segment("s", [copied.extents[1]])
    memory = Memory(segment.slot_bytes)
    answers = iter([False] * 4)
    with CodedReader(copied.paths, CodedIndex(copied.open())) as reader:
        n = read_segment(reader, segment, memory, 0, lambda: next(answers, True))
    assert n < CodedIndex(copied.open()).read_bytes(segment.runs)


@pytest.fixture
def damaged(copied: Copied, tmp_path: Path) -> Callable[[int | slice, bytes], Path]:
    """Writes the copy anew with other bytes at a place."""

    def write(at: int | slice, others: bytes) -> Path:
        content = bytearray(copied.path.read_bytes())
        place = at if isinstance(at, slice) else slice(at, at + len(others))
        content[place] = others
        path = tmp_path / "damaged.coded"
        path.write_bytes(content)
        return path

    return write


def test_a_damaged_piece_is_refused_where_it_is_read(
    copied: Copied, damaged: Callable[..., Path]
) -> None:
    coded = copied.open()
    middle = int(coded.starts[3]) + 1_000
    path = damaged(middle, bytes(64))
    segment = Segment("s", [copied.extents[1]])
    memory = Memory(segment.slot_bytes)
    with (
        CodedReader(copied.paths, CodedIndex(open_coded(path))) as reader,
        pytest.raises(ModelError, match=r"damaged.*--force"),
    ):
        read_segment(reader, segment, memory, 0, lambda: False)


def test_a_damaged_piece_is_no_measure_of_speed(
    copied: Copied, damaged: Callable[..., Path]
) -> None:
    path = damaged(slice(int(copied.open().starts[1]), None), b"")
    content = path.read_bytes()
    path.write_bytes(content + bytes(copied.path.stat().st_size - len(content)))
    with pytest.raises(ModelError, match="damaged"):
        decoded_bytes_per_s(CodedIndex(open_coded(path)))


@pytest.mark.parametrize("length", [0, 10, 30, 400, 5_000, -1], ids=str)
def test_a_copy_that_was_cut_short_is_refused(
    copied: Copied, damaged: Callable[..., Path], length: int
) -> None:
    path = damaged(slice(length, None), b"")
    with pytest.raises(ModelError, match=r"damaged\.coded"):
        open_coded(path)


@settings(max_examples=80)
@given(data=st.data())
def test_no_beginning_of_a_file_does_harm(
    data: st.DataObject, copied: Copied, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every byte before the pieces is covered by a checksum."""
    content = bytearray(copied.path.read_bytes())
    begin = len(coded_file.MAGIC) + 4 + 4 * (len(copied.open().starts) - 1)
    at = data.draw(st.integers(0, begin))
    content[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path = tmp_path_factory.getbasetemp() / "hostile.coded"
    path.write_bytes(content)
    if bytes(content) != copied.path.read_bytes():
        with pytest.raises(ModelError):
            open_coded(path)


@pytest.mark.parametrize(
    "extents",
    [
        [[0, 0, 1 << 60]],
        [[0, -1, 4]],
        [[0, 0, 0]],
        [],
        [[0, 0, 4, 4]],
        [["a", 0, 4]],
    ],
    ids=str,
)
def test_a_head_that_cannot_be_meant_is_refused(extents: list[object], tmp_path: Path) -> None:
    head = f'{{"source":"x","extents":{extents}}}'.replace("'", '"').encode()
    begin = coded_file.MAGIC + len(head).to_bytes(4, "little") + head + bytes(4)
    path = tmp_path / "hostile.coded"
    path.write_bytes(begin + hashlib.sha256(begin).digest() + bytes(BLOCK_BYTES))
    with pytest.raises(ModelError):
        open_coded(path)


def test_a_fifo_is_no_copy(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo.coded")
    with pytest.raises(ModelError, match="FIFO"):
        open_coded(tmp_path / "fifo.coded")


def test_a_full_disk_is_said_once_and_nothing_is_left(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, piece: np.ndarray) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Encoder, "encode", full)
    with pytest.raises(EdgespecError, match=r"No space left.*--out"):
        write_coded(tmp_path / "copy.coded", copied.paths, SOURCE, copied.chosen)
    assert not list(tmp_path.iterdir())


def test_writing_that_is_interrupted_leaves_nothing(copied: Copied, tmp_path: Path) -> None:
    def interrupted(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_coded(tmp_path / "copy.coded", copied.paths, SOURCE, copied.chosen, interrupted)
    assert not list(tmp_path.iterdir())


def test_a_direct_reader_agrees_with_the_copy(copied: Copied) -> None:
    segment = Segment("s", copied.extents)
    memory = Memory(segment.slot_bytes)
    with DirectReader(copied.paths) as reader:
        read_segment(reader, segment, memory, 0, lambda: False)
    found, _ = read_back(copied, copied.extents)
    for extent, content in zip(copied.extents, found, strict=True):
        start = segment.locate(extent.file_index, extent.offset)
        assert bytes(memory.view(start, extent.nbytes)) == content
