"""A target's weights of which a draft has the upper bits in memory: only the lower ones are read.

Beside the draft's file is one with the lower parts, in the order of the target's file. What the
draft holds as it is stored is not read at all.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from edgespec.concurrency.owning import Closeable
from edgespec.errors import ModelError, WeightReadError, marked, setting
from edgespec.files.cache_folder import lower_parts
from edgespec.files.sampled import sampled_digest
from edgespec.paging.pager import READERS
from edgespec.paging.reader import (
    BLOCK_BYTES,
    MERGED_BYTES,
    STAGING_BYTES,
    DirectReader,
    Extent,
    NestedRun,
    Reader,
    Run,
    Segment,
)
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.layout import padded
from edgespec_runtimes.gguf.own_draft.nesting import MERGING_BYTES, NESTINGS, Nesting, as_stored
from edgespec_runtimes.gguf.weights.segments import SMALL_BYTES, WeightGroup, extent_of

SOURCE = "edgespec.draft.nested_in"
"""Metadata of a draft and of lower parts: digest of the file of which they have parts. Its name
changes with the format."""
SUMS = "edgespec.draft.checksums"
"""Metadata of lower parts: digest of what follows them, checksums of their blocks and the draft's.
"""
NO_DIGEST = b"-" * 64
"""Stands for the digest while checksums are computed."""
SUMMED_BYTES = 4096
"""Bytes of a block that has a checksum."""
MAKE_AGAIN = f"make it again with {setting.draft('self')}, or `edgespec models draft`"
ALIGNMENT = BLOCK_BYTES
"""Alignment of lower parts in their file."""
_ALIKE = BLOCK_BYTES // 2
"""Units whose lower parts end at a block, as long as those of one are an even number of bytes."""


def checksums(raw: bytes | memoryview) -> np.ndarray:
    """Checksums of 32 bits of the whole blocks of some bytes."""
    raw = raw[: len(raw) - len(raw) % SUMMED_BYTES]
    sums = np.frombuffer(raw, np.uint64).reshape(-1, SUMMED_BYTES // 8).sum(1)
    folded: np.ndarray = sums ^ sums >> np.uint64(32)
    return folded.astype(np.uint32)


class CheckedReader(Closeable):
    """Compares each block of one of a reader's files with its checksum when it is first read."""

    def __init__(self, reader: Reader, path: Path, file_index: int, sums: np.ndarray) -> None:
        """Takes ownership of the reader."""
        self._reader, self._path, self._index = reader, path, file_index
        self._sums, self._is_unread = sums, np.ones(len(sums), bool)

    def read(self, run: Run, into: memoryview, stopped: Callable[[], bool]) -> int:
        """Raises WeightReadError, also for a damaged block."""
        n = self._reader.read(run, into, stopped)
        first = run.start // SUMMED_BYTES
        blocks = slice(first, min(first + n // SUMMED_BYTES, len(self._sums)))
        if run.file_index == self._index and self._is_unread[blocks].any():
            found = checksums(into[: (blocks.stop - first) * SUMMED_BYTES])
            if (wrong := np.flatnonzero(found != self._sums[blocks])).size:
                at = f"byte {(first + int(wrong[0])) * SUMMED_BYTES:,}"
                raise WeightReadError(
                    f"{self._path} is damaged at {at}: delete it and {MAKE_AGAIN}"
                )
            self._is_unread[blocks] = False
        return n

    def close(self) -> None:
        self._reader.close()


def _opened_lower(draft: GgufFile, target: GgufFile) -> tuple[GgufFile, np.ndarray, np.ndarray]:
    """The file of a draft's lower parts, and checksums of its blocks and of the draft's. Raises
    ModelError unless they were made together, of the target."""
    path = lower_parts(draft.path)
    try:
        lower = read_header(path)
        begin = min((one.offset for one in lower.tensors), default=0)
        ends = (padded(one.offset + one.nbytes, ALIGNMENT) for one in lower.tensors)
        end = max(ends, default=0)
        with path.open("rb") as file:
            head = file.read(begin)
            file.seek(end)
            sums = file.read()
        source = sampled_digest(target.paths, with_times=False)
    except (ModelError, OSError) as error:
        raise ModelError(f"{marked(error)}: {MAKE_AGAIN}") from error
    digest = hashlib.sha256(sums).hexdigest()
    is_pair = (lower.text(SOURCE, ""), lower.text(SUMS, "")) == (draft.text(SOURCE), digest)
    if not is_pair or source != draft.text(SOURCE):
        what = target.path if is_pair else path
        raise ModelError(f"{what} is not the file that {draft.path} was made with: {MAKE_AGAIN}")
    both, n_blocks = np.frombuffer(sums, np.uint32), end // SUMMED_BYTES
    heads = checksums(head.replace(digest.encode(), NO_DIGEST))
    if not np.array_equal(heads, both[: begin // SUMMED_BYTES]):
        raise ModelError(f"{path} is damaged at its beginning: {MAKE_AGAIN}")
    return lower, both[:n_blocks], both[n_blocks:]


@dataclass(slots=True)
class _Matrix:
    """A matrix of the target, and where its parts are."""

    nesting: Nesting
    lower_offset: int
    """Offset of its lower part in the file with such parts."""
    upper_address: int = 0
    """Address of its upper part, once the draft is loaded."""

    def merge(self, first: int, lower: memoryview, out: memoryview) -> None:
        """Write units of the file, from the `first`, to `out`."""
        kind = self.nesting
        assert self.upper_address
        units = np.frombuffer(out, np.uint8).reshape(-1, kind.file_bytes)
        shape = len(units), kind.upper_bytes
        begin = self.upper_address + first * kind.upper_bytes
        upper = memoryview((ctypes.c_uint8 * math.prod(shape)).from_address(begin))
        kind.merge(
            np.frombuffer(upper, np.uint8).reshape(shape),
            np.frombuffer(lower, np.uint8).reshape(len(units), kind.lower_bytes),
            units,
        )


class NestedWeights:
    """The matrices of a target that are streamed by their lower parts."""

    def __init__(self, draft: GgufFile, target: GgufFile) -> None:
        """Raises ModelError if the lower parts are damaged, or those of another file."""
        lower, self._lower_sums, self._upper_sums = _opened_lower(draft, target)
        self.path = lower.path
        sums_bytes = self._lower_sums.nbytes + self._upper_sums.nbytes
        self.memory_bytes = READERS * STAGING_BYTES + MERGING_BYTES + sums_bytes
        self._file_index = len(target.paths)
        self._matrices: dict[str, _Matrix] = {}
        for entry in target.tensors:
            upper, low = (file.tensors_by_name.get(entry.name) for file in (draft, lower))
            if upper is None or entry.nbytes < SMALL_BYTES or upper.shape != entry.shape:
                continue
            ways = NESTINGS.get(entry.type.name, ())
            nesting = next((way for way in ways if way.upper == upper.type), None)
            if nesting and low:
                if low.nbytes != entry.nbytes // nesting.file_bytes * nesting.lower_bytes:
                    raise ModelError(f"{lower.path} has another format: {MAKE_AGAIN}")
                self._matrices[entry.name] = _Matrix(nesting, low.offset)
            elif upper.type == entry.type:
                row_bytes = entry.type.nbytes(entry.shape[0])
                self._matrices[entry.name] = _Matrix(as_stored(entry.type, row_bytes), 0)

    def put(self, name: str, address: int) -> bool:
        """Take the upper part of a matrix from this address as long as the target is open; False
        for the name of another."""
        if matrix := self._matrices.get(name):
            matrix.upper_address = address
        return matrix is not None

    def checked(self, reader: Reader) -> Reader:
        """A reader of the target's files, and then of its lower parts."""
        return CheckedReader(reader, self.path, self._file_index, self._lower_sums)

    def read_upper(self, draft: Path) -> Reader:
        """A reader of the draft."""
        return CheckedReader(DirectReader([draft]), draft, 0, self._upper_sums)

    def nest(self, group: WeightGroup) -> WeightGroup:
        """The group, of which only lower parts are read if they are known."""
        if not any(weight.entry.name in self._matrices for weight in group.weights):
            return group
        segment, pieces = group.segment, list[Run | NestedRun]()
        for weight in group.weights:
            extent = segment.extents[0] if group.rows else extent_of(weight.entry)
            matrix = self._matrices.get(weight.entry.name)
            if matrix is None:
                for run in Segment("", [extent]).runs:
                    at = segment.locate(run.file_index, run.start)
                    pieces += replace(run, slot_offset=at).pieces()
            else:
                begin = extent.offset - weight.entry.offset
                at = segment.locate(extent.file_index, extent.offset)
                pieces += self._pieces(matrix, begin, extent.nbytes, at)
        return replace(group, segment=Segment(segment.name, segment.extents, tuple(pieces)))

    def _pieces(
        self, matrix: _Matrix, begin: int, nbytes: int, slot_offset: int
    ) -> Iterator[NestedRun]:
        """The pieces of a matrix's bytes from `begin`, which are whole units."""
        kind = matrix.nesting
        n_most = _ALIKE * max(1, MERGED_BYTES // kind.file_bytes // _ALIKE)
        end = (begin + nbytes) // kind.file_bytes
        for first in range(begin // kind.file_bytes, end, n_most):
            n_units = min(n_most, end - first)
            at, lower_bytes = first * kind.lower_bytes, n_units * kind.lower_bytes
            run = Segment("", [Extent(self._file_index, matrix.lower_offset + at, lower_bytes)])
            lower = replace(run.runs[0], slot_offset=(matrix.lower_offset + at) % BLOCK_BYTES)
            yield NestedRun(
                lower,
                lower_bytes,
                slot_offset + first * kind.file_bytes - begin,
                n_units * kind.file_bytes,
                partial(matrix.merge, first),
            )
