"""Writes GGUF files, and copies parts of others: metadata, tensor descriptions and weights.

Knows the format and the disk, and nothing of what a model computes.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edgespec.errors import EdgespecError, ModelError
from edgespec.files.json_file import JsonFile
from edgespec.files.unfinished import scratch_folder
from edgespec.settings.units import format_size
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.layout import MAGIC, TensorType, ValueType, padded

if TYPE_CHECKING:
    from edgespec.ports import Progress

CHUNK_BYTES = 8 << 20
"""Bytes of weights in memory at a time."""
Description = tuple[str, TensorType, tuple[int, ...]]
"""Name, type and shape of a tensor, in ggml's order of dimensions."""


@dataclass(frozen=True)
class NewModel:
    """A GGUF file that is to be written; `pairs` are packed metadata."""

    pairs: Sequence[bytes]
    tensors: Sequence[Description]
    alignment: int
    tail_bytes: int = 0
    """Size of what follows the tensors, the last of the contents."""

    @cached_property
    def head(self) -> bytes:
        """All bytes before the weights, padded."""
        descriptions, offset = [], 0
        for name, kind, shape in self.tensors:
            n_dims = len(shape)
            place = struct.pack(f"<I{n_dims}QIQ", n_dims, *shape, kind.code, offset)
            descriptions.append(_pack_string(name) + place)
            offset += padded(kind.nbytes(math.prod(shape)), self.alignment)
        preamble = MAGIC + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))
        head = b"".join([preamble, *self.pairs, *descriptions])
        return head.ljust(padded(len(head), self.alignment), b"\0")

    @property
    def size_bytes(self) -> int:
        weights = (kind.nbytes(math.prod(shape)) for _, kind, shape in self.tensors)
        sizes = (*weights, self.tail_bytes)
        return len(self.head) + sum(padded(nbytes, self.alignment) for nbytes in sizes)

    def write(
        self,
        out: Path,
        contents: Iterable[Iterable[bytes]],
        what: str = "",
        progress: Progress | None = None,
    ) -> None:
        """Write `out`, which appears when it is complete; `contents` are the bytes of each tensor,
        in pieces. Raises EdgespecError when the disk is too small or fails."""
        try:
            with scratch_folder(out.parent) as folder:
                write_on({folder / out.name: self}, contents, what, progress)
                (folder / out.name).replace(out)
        except OSError as error:
            raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def write_on(
    models: Mapping[Path, NewModel],
    contents: Iterable[Iterable[bytes | tuple[bytes, ...]]],
    what: str = "",
    progress: Progress | None = None,
    source: str = "",
) -> None:
    """Write models side by side; `contents` are the bytes of each tensor in pieces, of the first
    model or of all.

    What was interrupted in this folder goes on after its last tensor, if it has the same heads and
    the digest `source`; a checksum tells what a power cut kept from the disk. Heads are written
    last. Raises OSError, and EdgespecError when the disk is too small.
    """
    heads, paths = [model.head for model in models.values()], [*models]
    digest = hashlib.sha256(b"".join([source.encode(), *heads])).hexdigest()
    record = JsonFile(paths[0].parent, "written")
    with ExitStack() as stack:
        for path in paths:
            path.touch()
        files = [stack.enter_context(path.open("r+b")) for path in paths]
        n_done, ends, sums = 0, [len(head) for head in heads], [0 for _ in heads]
        match record.read():
            case [made, n, list(to), found] if made == digest and found == [
                _checksum(file, *span) for file, *span in zip(files, ends, to, strict=True)
            ]:
                n_done, ends, sums = n, to, found
        for file, end in zip(files, ends, strict=True):
            file.truncate(end)
            file.seek(end)
        needed = sum(model.size_bytes for model in models.values()) - sum(ends)
        if (free := shutil.disk_usage(paths[0].parent).free) < needed:
            raise EdgespecError(
                f"{paths[0].name} needs {format_size(needed)}, {format_size(free)} are free on its "
                "disk: choose a smaller size or another disk"
            )

        def put(piece: bytes | tuple[bytes, ...]) -> None:
            for i, raw in enumerate(piece if isinstance(piece, tuple) else (piece,)):
                files[i].write(raw)
                sums[i] = zlib.crc32(raw, sums[i])

        for n, content in enumerate(islice(contents, n_done, None), n_done + 1):
            for piece in content:
                put(piece)
            ends = [file.tell() for file in files]
            alignments = (model.alignment for model in models.values())
            put(tuple(bytes(-end % by) for end, by in zip(ends, alignments, strict=True)))
            for file in files:
                file.flush()
            record.write([digest, n, [file.tell() for file in files], sums])
            if progress is not None:
                progress(what, files[0].tell() / models[paths[0]].size_bytes)
        for file, head in zip(files, heads, strict=True):
            file.seek(0)
            file.write(head)
            file.flush()
            os.fsync(file.fileno())


def _checksum(file: BinaryIO, begin: int, end: int) -> int:
    """Checksum of the bytes of a file from `begin` to `end`, if it has so many."""
    file.seek(begin)
    found = 0
    while raw := file.read(min(CHUNK_BYTES, end - file.tell())):
        found = zlib.crc32(raw, found)
    return found


def pack_pair(key: str, value: int | str) -> bytes:
    if isinstance(value, str):
        return _pack_string(key) + struct.pack("<I", ValueType.STRING) + _pack_string(value)
    return _pack_string(key) + struct.pack("<II", ValueType.UINT32, value)


def pack_array(key: str, values: Sequence[int]) -> bytes:
    """A pair of the metadata with an array of integers of 32 bits."""
    about = struct.pack("<IIQ", ValueType.ARRAY, ValueType.INT32, len(values))
    return _pack_string(key) + about + struct.pack(f"<{len(values)}i", *values)


def _pack_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def copied_pairs(header: GgufFile, changed: Mapping[str, bytes]) -> list[bytes]:
    """The metadata of a model as it is stored, without what it says about parts, and with the
    packed pairs `changed`, by key. Raises OSError, and ModelError if the file became shorter."""
    pairs = {
        key: read_bytes(header.path, entry.start, entry.end - entry.start)
        for key, entry in header.entries.items()
        if not key.startswith("split.") and key not in changed
    }
    return [*pairs.values(), *changed.values()]


def read_bytes(path: Path, offset: int, n_bytes: int) -> bytes:
    """`n_bytes` of a file from `offset`. Raises OSError, and ModelError if it ends before."""
    with path.open("rb") as file:
        file.seek(offset)
        raw = file.read(n_bytes)
    if len(raw) < n_bytes:
        raise ModelError(f"{path} became shorter while it was read: copy it again")
    return raw
