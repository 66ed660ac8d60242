"""Reads the header of one GGUF file: metadata and positions of tensors.

Every count and length is checked against the size of the file, arrays are read on demand, and the
file is never mapped. What llama.cpp refuses (names that occur twice, gaps between tensors) is left
to it. Knows nothing of architectures.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from edgespec.concurrency.owning import Closeable
from edgespec.errors import ModelError
from edgespec.files.regular import open_regular
from edgespec_runtimes.gguf.file.layout import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    SCALARS,
    TENSOR_TYPES,
    U32,
    U64,
    TensorType,
    ValueType,
    padded,
)

MAX_HEADER_BYTES, _LIMIT = 256 << 20, "256 MiB"
MAX_ENTRIES = 1 << 16
"""Most tensors or metadata pairs of a file; the largest models have a few thousand."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in the metadata, which is read by `values`."""

    path: Path
    kind: ValueType
    count: int
    start: int
    end: int
    """The elements are the bytes from `start` to `end` of the file."""

    def __len__(self) -> int:
        return self.count

    def values(self) -> list[Scalar]:
        """All elements. Bytes of strings that are not UTF-8 become lone surrogates."""
        if self.kind is ValueType.STRING:
            return [text.decode("utf-8", "surrogateescape") for text in self.strings()]
        layout = struct.Struct(f"<{self.count}{SCALARS[self.kind].format[1:]}")
        return list(layout.unpack(self._read()))

    def strings(self) -> Iterator[bytes]:
        """The elements of an array of strings, as stored."""
        data, end, length_at = self._read(), 0, U64.unpack_from
        for _ in range(self.count):
            begin = end + 8
            end = begin + length_at(data, end)[0]
            yield data[begin:end]

    def _read(self) -> bytes:
        with _Reader(self.path) as reader:
            reader.seek(self.start)
            return reader.take(self.end - self.start)


MetadataValue = Scalar | GgufArray


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One metadata pair, at the bytes from `start` to `end` of its file, including the key."""

    value: MetadataValue
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor and its position. `shape` is in ggml's order: a row has `shape[0]` elements."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    file_index: int
    offset: int
    """Position of the first byte in the tensor's file."""
    nbytes: int


def read_part(
    path: Path, file_index: int
) -> tuple[int, Mapping[str, MetadataEntry], tuple[TensorEntry, ...]]:
    """Alignment, metadata and tensors of the file at `path`, part `file_index` of its model."""
    with _Reader(path) as reader:
        n_tensors, n_pairs = _preamble(reader)
        entries = dict(_pair(reader) for _ in range(n_pairs))
        alignment = _alignment(reader, entries)
        described = [_tensor(reader, file_index) for _ in range(n_tensors)]
        tensors = _placed(reader, described, alignment)
    return alignment, MappingProxyType(entries), tensors


_SMALLEST_PAIR = 8 + 1 + 4 + 1  # key of one byte, type, value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name of one byte, one dimension, type, offset


class _Reader(Closeable):
    """Reads a file; refuses lengths beyond its end."""

    WINDOW = 1 << 18

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_regular(path, self.WINDOW)
        except FileNotFoundError as error:
            raise ModelError(f"{path}: there is no such file") from error
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        self.size = path.stat().st_size
        self.most = min(self.size, MAX_HEADER_BYTES)
        """Bytes that the header may have."""

    def close(self) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._file.tell()

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {message}; download or copy it again")

    def seek(self, position: int) -> None:
        if position > self.most:
            raise self.fail(f"a length in its header points past the file's end, or {_LIMIT}")
        self._file.seek(position)

    def take(self, n_bytes: int, more: int = 0) -> bytes:
        """The next `n_bytes`, and up to so many more."""
        try:
            data = self._file.read(n_bytes + more) if n_bytes <= self.most else b""
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(data) < n_bytes:
            raise self.fail(f"a length in its header points past the file's end, or {_LIMIT}")
        return data

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def string(self) -> bytes:
        return self.take(self.number(U64))

    def skip_strings(self, count: int) -> None:
        """Skip `count` strings, in the inner loop of reading a vocabulary."""
        begin, at, window = self.position, 0, b""
        unpack, last = U64.unpack_from, -1
        for _ in range(count):
            if at > last:
                begin, at = begin + at, 0
                self.seek(begin)
                window = self.take(8, self.WINDOW)
                last = len(window) - 8
            at += 8 + unpack(window, at)[0]
        self.seek(begin + at)


def _preamble(reader: _Reader) -> tuple[int, int]:
    """Numbers of tensors and of metadata pairs."""
    path = reader.path
    if reader.size == 0:
        raise ModelError(f"{path} is empty: download or copy it again")
    magic = reader.take(min(4, reader.size))
    if magic != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it begins with {magic!r}")
    version = reader.number(U32)
    if version & 0xFFFF == 0:
        raise ModelError(f"{path} is a big-endian GGUF file: convert it to little endian first")
    if version not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}: convert it to version 3")
    n_tensors, n_pairs = reader.number(U64), reader.number(U64)
    for count, smallest, what in (
        (n_pairs, _SMALLEST_PAIR, "metadata pairs"),
        (n_tensors, _SMALLEST_TENSOR, "tensors"),
    ):
        if count > min(MAX_ENTRIES, reader.size // smallest):
            raise reader.fail(f"it claims {count} {what} in {reader.size} bytes")
    return n_tensors, n_pairs


def _pair(reader: _Reader) -> tuple[str, MetadataEntry]:
    """A key and its entry."""
    start = reader.position
    key = reader.string().decode(errors="replace")
    kind = _value_type(reader, key)
    value: MetadataValue
    if kind is ValueType.ARRAY:
        value = _array(reader, key)
    elif kind is ValueType.STRING:
        value = reader.string().decode("utf-8", "surrogateescape")
    else:
        layout = SCALARS[kind]
        value = layout.unpack(reader.take(layout.size))[0]
    return key, MetadataEntry(value, start, reader.position)


def _array(reader: _Reader, key: str) -> GgufArray:
    kind = _value_type(reader, key)
    count = reader.number(U64)
    if kind is ValueType.ARRAY:
        raise reader.fail(f"{key[:64]!r} is an array of arrays")
    smallest = 8 if kind is ValueType.STRING else SCALARS[kind].size
    if count > reader.most // smallest:
        raise reader.fail(f"{key[:64]!r} claims {count} elements, more than the file can hold")
    start = reader.position
    if kind is ValueType.STRING:
        reader.skip_strings(count)
    else:
        reader.seek(start + count * smallest)
    return GgufArray(reader.path, kind, count, start, reader.position)


def _value_type(reader: _Reader, key: str) -> ValueType:
    code = reader.number(U32)
    try:
        return ValueType(code)
    except ValueError:
        raise reader.fail(f"{key[:64]!r} has the unknown value type {code}") from None


def _alignment(reader: _Reader, entries: Mapping[str, MetadataEntry]) -> int:
    value = entries[key].value if (key := "general.alignment") in entries else DEFAULT_ALIGNMENT
    if not isinstance(value, int) or value < DEFAULT_ALIGNMENT or value & (value - 1):
        # the format requires a power of two, the kernels alignment to 32
        raise reader.fail(f"{key} {value} is not a power of two of at least 32")
    return value


def _tensor(reader: _Reader, file_index: int) -> TensorEntry:
    """A tensor's entry, with an offset relative to the start of the data."""
    name = reader.string().decode(errors="replace")
    n_dims = reader.number(U32)
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise reader.fail(f"{name[:64]!r} has {n_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(reader.number(U64) for _ in range(n_dims))
    code = reader.number(U32)
    if code not in TENSOR_TYPES:
        raise ModelError(f"{reader.path}: {name[:64]!r} has tensor type {code}, which is not known")
    kind = TENSOR_TYPES[code]
    n_elements = math.prod(shape)
    if not n_elements or kind.nbytes(n_elements) > reader.size:
        raise reader.fail(
            f"{name[:64]!r} has the impossible shape {list(shape)} in {reader.size:,} bytes"
        )
    return TensorEntry(name, shape, kind, file_index, reader.number(U64), kind.nbytes(n_elements))


def _placed(reader: _Reader, tensors: list[TensorEntry], alignment: int) -> tuple[TensorEntry, ...]:
    """The tensors with offsets from the file's start. Raises ModelError for a file cut short."""
    begin = padded(reader.position, alignment)
    end = begin + max((tensor.offset + tensor.nbytes for tensor in tensors), default=-begin)
    if end > reader.size:
        raise ModelError(
            f"{reader.path} is cut short: {end - reader.size} of {end} bytes are missing; "
            "download or copy it again"
        )
    return tuple(replace(tensor, offset=begin + tensor.offset) for tensor in tensors)
