"""Reads weights from a coded copy where it has them, and from the model's own files where not.

A `Reader` like any other: what it fills holds the same bytes. Knows the copy and how to decode it;
not when that is faster.

A thread of its own decodes what was read while the next pieces are read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from edgespec.concurrency.owning import Owner
from edgespec.errors import ModelError
from edgespec.paging.coded_file import CodedFile, n_pieces
from edgespec.paging.coding import PIECE_BYTES, Bytes, Decoder
from edgespec.paging.reader import (
    BLOCK_BYTES,
    DirectReader,
    Extent,
    Memory,
    Run,
    block_ceil,
    block_floor,
)

READ_PIECES = 8
"""Read at once; smaller reads reach less of a disk's speed."""
N_STAGES = 3
"""One is read into, one decoded, one waits for either."""
N_SAMPLES = 32
DECODER_BYTES = PIECE_BYTES + (512 << 10)
"""Planes, and zstd's own."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Pieces of one extent that are read at once."""

    first: int
    last: int
    """The one behind them."""
    offset: int
    """Of the first one's weights, in the extent."""
    nbytes: int
    """Of all their weights."""


class CodedIndex:
    """Which pieces hold which extent, and what reading them takes."""

    def __init__(self, coded: CodedFile) -> None:
        self.coded = coded
        self._starts = coded.starts
        self._first: dict[Extent, int] = {}
        number = 0
        for extent in coded.extents:
            self._first[extent] = number
            number += n_pieces(extent.nbytes)

    def groups(self, extent: Extent) -> Iterator[_Group] | None:
        """None for an extent that was not coded."""
        first = self._first.get(extent)
        return None if first is None else self._groups(first, extent.nbytes)

    def _groups(self, first: int, nbytes: int) -> Iterator[_Group]:
        end = first + n_pieces(nbytes)
        for begin in range(first, end, READ_PIECES):
            last = min(begin + READ_PIECES, end)
            offset = (begin - first) * PIECE_BYTES
            yield _Group(begin, last, offset, min((last - begin) * PIECE_BYTES, nbytes - offset))

    def run_of(self, group: _Group) -> Run:
        """Where a group lies in the copy."""
        end = int(self._starts[group.last])
        start = block_floor(int(self._starts[group.first]))
        return Run(0, start, block_ceil(end) - start, end - start, 0)

    def frames(self, group: _Group, read: memoryview) -> Iterator[memoryview]:
        """Of a group that was read as `run_of` says."""
        start = block_floor(int(self._starts[group.first]))
        for number in range(group.first, group.last):
            begin, end = self._starts[number : number + 2] - start
            yield read[int(begin) : int(end)]

    def read_bytes(self, runs: Sequence[Run]) -> int:
        """What storage delivers for runs."""
        return sum(self._part_bytes(part) for run in runs for part in run.parts)

    def _part_bytes(self, part: Extent) -> int:
        groups = self.groups(part)
        if groups is None:
            return plain_run(part).nbytes
        return sum(self.run_of(group).nbytes for group in groups)

    @property
    def stage_bytes(self) -> int:
        """The most that a group takes."""
        widest = (self._starts[READ_PIECES:] - self._starts[:-READ_PIECES]).max(initial=0)
        whole = self._starts[-1] - self._starts[0]
        return block_ceil(int(min(widest or whole, whole))) + BLOCK_BYTES

    @property
    def buffer_bytes(self) -> int:
        """What a reader of the copy takes, its index included."""
        return N_STAGES * self.stage_bytes + DECODER_BYTES + self._starts.nbytes


def plain_run(part: Extent) -> Run:
    """An extent by itself, widened to blocks."""
    start, end = block_floor(part.offset), part.offset + part.nbytes
    return Run(part.file_index, start, block_ceil(end) - start, end - start, 0)


class CodedReader(Owner):
    """One thread reads at a time."""

    def __init__(self, paths: Sequence[Path], index: CodedIndex) -> None:
        self._index = index
        self._decoder = Decoder()
        self._plain = DirectReader(paths)
        self._file = DirectReader([index.coded.path])
        self._stage_bytes = index.stage_bytes
        self._stages = Memory(N_STAGES * self._stage_bytes)
        self._thread = ThreadPoolExecutor(1, "edgespec-decoder")

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        n, is_whole = 0, True
        for part in run.parts:
            groups = self._index.groups(part)
            if groups is None:
                n += self._read_plain(part, run, into, stopped)
                continue
            done, is_whole = self._read_coded(groups, part.offset - run.start, into, stopped)
            n += done
            if not is_whole:
                # no array may be left that looks into memory which is given back
                raise ModelError(
                    f"{self._index.coded.path} is damaged: `edgespec models code --force` writes "
                    "it anew, and --weights-coded off reads the model itself"
                )
        return n

    def _read_plain(
        self, part: Extent, run: Run, into: memoryview, stopped: Callable[[], bool]
    ) -> int:
        alone = plain_run(part)
        with into[alone.start - run.start :][: alone.nbytes] as target:
            return self._plain.read(alone, target, stopped)

    def _read_coded(
        self, groups: Iterator[_Group], at: int, into: memoryview, stopped: Callable[[], bool]
    ) -> tuple[int, bool]:
        """Bytes that storage delivered, and whether they were a copy of these weights."""
        n, is_whole = 0, True
        slot = np.frombuffer(into, np.uint8)
        under_way: deque[Future[bool]] = deque()
        try:
            for i, group in enumerate(groups):
                if stopped() or not is_whole:
                    break
                if len(under_way) == N_STAGES:
                    is_whole = under_way.popleft().result()
                run = self._index.run_of(group)
                stage = self._stages.view(i % N_STAGES * self._stage_bytes, run.nbytes)
                n += self._file.read(run, stage, stopped)
                if stopped():
                    break
                weights = slot[at + group.offset :][: group.nbytes]
                under_way.append(self._thread.submit(self._decode, group, stage, weights))
        finally:
            while under_way:
                is_whole = under_way.popleft().result() and is_whole
        return n, is_whole

    def _decode(self, group: _Group, read: memoryview, weights: Bytes) -> bool:
        return all(
            self._decoder.decode(frame, weights[i * PIECE_BYTES : (i + 1) * PIECE_BYTES])
            for i, frame in enumerate(self._index.frames(group, read))
        )

    def close(self) -> None:
        self._thread.shutdown()
        self._file.close()
        self._plain.close()


def decoding_seconds(
    decoder: Decoder, coded: memoryview, piece: Bytes, clock: Callable[[], float]
) -> float | None:
    """That decoding a piece takes; None for one that is damaged."""
    began = clock()
    return clock() - began if decoder.decode(coded, piece) else None


def decoded_bytes_per_s(index: CodedIndex, clock: Callable[[], float] = time.perf_counter) -> float:
    """Weights that one thread decodes a second, by pieces spread over the copy. Raises ModelError
    and WeightReadError."""
    extents = [extent for extent in index.coded.extents if extent.nbytes >= PIECE_BYTES]
    extents = extents or list(index.coded.extents)
    step = -(-len(extents) // N_SAMPLES)
    decoder, weights = Decoder(), np.empty(PIECE_BYTES, np.uint8)
    seconds = []
    memory = Memory(index.stage_bytes)
    with DirectReader([index.coded.path]) as reader:
        for extent in extents[::step]:
            group = next(index.groups(extent) or iter(()))
            run = index.run_of(group)
            view = memory.view(0, run.nbytes)
            reader.read(run, view, lambda: False)
            frame = next(index.frames(group, view))
            piece = weights[: min(PIECE_BYTES, extent.nbytes)]
            found_s = decoding_seconds(decoder, frame, piece, clock)
            if found_s is None:
                raise ModelError(
                    f"{index.coded.path} is damaged: `edgespec models code --force` writes it anew"
                )
            seconds.append(found_s / len(piece))
    return 1 / max(median(seconds), 1e-15)
