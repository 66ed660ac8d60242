"""A copy of some of a model's weights, coded piece by piece: how the file is laid out.

Knows files, extents and pieces; not what a weight is, nor when reading a copy pays.

    magic, length of the head, head (JSON: whose copy it is, and of which extents),
    length of every piece as coded (uint32), SHA-256 of all before;
    from the next block on the pieces
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from edgespec.concurrency.owning import Owner
from edgespec.errors import EdgespecError, ModelError
from edgespec.files.regular import open_regular
from edgespec.files.unfinished import unfinished_file
from edgespec.paging.coding import MOST_CODED_BYTES, PIECE_BYTES, Bytes, Encoder
from edgespec.paging.reader import (
    BLOCK_BYTES,
    READ_BYTES,
    DirectReader,
    Extent,
    Memory,
    Run,
    block_ceil,
    block_floor,
)
from edgespec.ports import Progress

MAGIC = b"edgespec coded 1\n"
_HEAD_LENGTH = struct.Struct("<I")
_MOST_HEAD_BYTES = 16 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size
_CODING = "coding weights"


class _Head(BaseModel):
    """What stands at the beginning of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """The fingerprint of the files that were coded."""
    extents: tuple[tuple[NonNegativeInt, NonNegativeInt, PositiveInt], ...]
    """File, offset and length of what was coded, in the order of the pieces."""


@dataclass(frozen=True, eq=False)
class CodedFile:
    """A copy whose beginning was read and found whole."""

    path: Path
    source: str
    extents: tuple[Extent, ...]
    starts: np.ndarray
    """Where pieces begin, int64 [n_pieces + 1]: the last one is the end of the file."""

    @property
    def weight_bytes(self) -> int:
        return sum(extent.nbytes for extent in self.extents)

    @property
    def coded_bytes(self) -> int:
        return int(self.starts[-1] - self.starts[0])

    @property
    def share(self) -> float:
        """Bytes of the copy for each byte of weights."""
        return self.coded_bytes / self.weight_bytes


def n_pieces(nbytes: int) -> int:
    return -(-nbytes // PIECE_BYTES)


def open_coded(path: Path) -> CodedFile:
    """Read the beginning of a copy. Raises ModelError for what is none, damaged or cut short."""
    try:
        with open_regular(path) as file:
            return _read(file, path)
    except (OSError, ValidationError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "its head is no such"
        raise ModelError(f"{path} cannot be read as a copy of weights: {reason}") from error


def _read(file: BinaryIO, path: Path) -> CodedFile:
    begin = file.read(len(MAGIC) + _HEAD_LENGTH.size)
    if not begin.startswith(MAGIC) or len(begin) != len(MAGIC) + _HEAD_LENGTH.size:
        raise ModelError(f"{path} is no copy of coded weights: `edgespec models code` writes one")
    (head_bytes,) = _HEAD_LENGTH.unpack_from(begin, len(MAGIC))
    if head_bytes > _MOST_HEAD_BYTES:
        raise _damaged(path)
    raw_head = file.read(head_bytes)
    head = _Head.model_validate_json(raw_head)
    extents = tuple(Extent(*extent) for extent in head.extents)
    count = sum(n_pieces(extent.nbytes) for extent in extents)
    size = os.fstat(file.fileno()).st_size
    if not count or 4 * count > size:
        raise _damaged(path)
    raw_lengths = file.read(4 * count)
    digest = hashlib.sha256(begin + raw_head + raw_lengths).digest()
    if file.read(_DIGEST_BYTES) != digest:
        raise _damaged(path)
    lengths = np.frombuffer(raw_lengths, "<u4")
    starts = np.empty(count + 1, np.int64)
    starts[0] = block_ceil(file.tell())
    np.cumsum(lengths, out=starts[1:])
    starts[1:] += starts[0]
    if int(lengths.max()) > MOST_CODED_BYTES or starts[-1] != size:
        raise _damaged(path)
    return CodedFile(path, head.source, extents, starts)


def _damaged(path: Path) -> ModelError:
    return ModelError(
        f"{path} is damaged or cut short: `edgespec models code --force` writes it anew"
    )


def write_coded(
    out: Path,
    sources: Sequence[Path],
    source: str,
    extents: Sequence[Extent],
    progress: Progress | None = None,
) -> None:
    """Write `out`, whole or not at all, with some MiB of memory. `source` is the fingerprint of
    `sources`; extents hold half-precision weights. Raises EdgespecError for a full disk, and what
    reading raises."""
    ordered = sorted(extents, key=lambda extent: (extent.file_index, extent.offset))
    head = _Head(source=source, extents=tuple((e.file_index, e.offset, e.nbytes) for e in ordered))
    raw_head = head.model_dump_json().encode()
    begin = MAGIC + _HEAD_LENGTH.pack(len(raw_head)) + raw_head
    lengths = np.zeros(sum(n_pieces(extent.nbytes) for extent in ordered), "<u4")
    total, done = sum(extent.nbytes for extent in ordered), 0
    encoder = Encoder()
    try:
        with unfinished_file(out) as file, Pieces(sources) as pieces:
            file.seek(block_ceil(len(begin) + lengths.nbytes + _DIGEST_BYTES))
            number = 0
            for extent in ordered:
                for piece in pieces.of(extent):
                    frame = encoder.encode(piece)
                    file.write(frame)
                    lengths[number] = len(frame)
                    number += 1
                    done += len(piece)
                    if progress and number % 16 == 0:
                        progress(_CODING, done / total)
            file.seek(0)
            index = begin + lengths.tobytes()
            file.write(index + hashlib.sha256(index).digest())
    except OSError as error:
        raise EdgespecError(
            f"{out} could not be written: {error.strerror}; it takes up to "
            f"{total / (1 << 20):,.0f} MiB: free some, or name another place with --out"
        ) from error
    if progress:
        progress(_CODING, 1.0)


class Pieces(Owner):
    """Reads extents piece by piece, past the page cache."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._reader = DirectReader(paths)
        self._memory = Memory(READ_BYTES + BLOCK_BYTES)

    def of(self, extent: Extent) -> Iterator[Bytes]:
        """Each is overwritten by the next one."""
        end = extent.offset + extent.nbytes
        for begin in range(extent.offset, end, READ_BYTES):
            start, stop = block_floor(begin), min(begin + READ_BYTES, end)
            run = Run(extent.file_index, start, block_ceil(stop) - start, stop - start, 0)
            self._reader.read(run, self._memory.view(0, run.nbytes), lambda: False)
            weights = np.frombuffer(self._memory.view(begin - start, stop - begin), np.uint8)
            for at in range(0, len(weights), PIECE_BYTES):
                yield weights[at : at + PIECE_BYTES]

    def close(self) -> None:
        self._reader.close()
