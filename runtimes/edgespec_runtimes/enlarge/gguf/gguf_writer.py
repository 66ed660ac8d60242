"""Writes GGUF files, and copies parts of others: metadata, tensor descriptions and weights.

Knows the format and the disk, and nothing of what a model computes.
"""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError, ModelError
from edgespec.files.unfinished import unfinished_file
from edgespec.settings.units import format_size
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import MAGIC, SCALARS, TensorType, ValueType, padded

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
    beside_bytes: int = 0
    """Size of another file that is written meanwhile."""

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
        free, size = shutil.disk_usage(out.parent).free, self.size_bytes
        if free < (needed := size + self.beside_bytes):
            raise EdgespecError(
                f"{out} needs {format_size(needed)}, {format_size(free)} are free there: choose a "
                "smaller size or another disk"
            )
        try:
            with unfinished_file(out) as file:
                file.write(self.head)
                for content in contents:
                    file.writelines(content)
                    file.write(bytes(-file.tell() % self.alignment))
                    if progress is not None:
                        progress(what, file.tell() / size)
        except OSError as error:
            raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def pack_pair(key: str, value: int | str) -> bytes:
    if isinstance(value, str):
        return _pack_string(key) + struct.pack("<I", ValueType.STRING) + _pack_string(value)
    return _pack_string(key) + struct.pack("<II", ValueType.UINT32, value)


def pack_array(key: str, kind: ValueType, values: Sequence[object]) -> bytes:
    """A pair of the metadata with an array of numbers."""
    about = struct.pack("<IIQ", ValueType.ARRAY, kind, len(values))
    layout = f"<{len(values)}{SCALARS[kind].format[1:]}"
    return _pack_string(key) + about + struct.pack(layout, *values)


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


def copied_tensor(header: GgufFile, tensor: TensorEntry) -> Iterator[bytes]:
    """A tensor as it is stored, in pieces. Raises OSError, and ModelError if the file became
    shorter."""
    for start in range(0, tensor.nbytes, CHUNK_BYTES):
        n_bytes = min(CHUNK_BYTES, tensor.nbytes - start)
        yield read_bytes(header.paths[tensor.file_index], tensor.offset + start, n_bytes)


def read_bytes(path: Path, offset: int, n_bytes: int) -> bytes:
    """`n_bytes` of a file from `offset`. Raises OSError, and ModelError if it ends before."""
    with path.open("rb") as file:
        file.seek(offset)
        raw = file.read(n_bytes)
    if len(raw) < n_bytes:
        raise ModelError(f"{path} became shorter while it was read: copy it again")
    return raw
