"""Reads the header of one GGUF file: metadata and positions of tensors.

Every count and length is checked against the size of the file, arrays are read on demand, and the
file is never mapped. Knows nothing of architectures.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from edgespec.concurrency.owning import Closeable
from edgespec.errors import ModelError
from edgespec.files.regular import open_regular, special_kind
from edgespec_runtimes.gguf.file.layout import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    MAX_NAME_BYTES,
    SCALARS,
    TENSOR_TYPES,
    U32,
    U64,
    TensorType,
    ValueType,
    padded,
)

MAX_HEADER_BYTES = 256 << 20
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

    def picked(self, places: Collection[int]) -> tuple[dict[int, bytes], int]:
        """The strings at some places, and the length of the longest of all."""
        data, end, longest, length_at = self._read(), 0, 0, U64.unpack_from
        found = {}
        for place in range(self.count):
            length, begin = length_at(data, end)[0], end + 8
            end = begin + length
            longest = max(longest, length)
            if place in places:
                found[place] = data[begin:end]
        return found, longest

    def _read(self) -> bytes:
        with _Reader(self.path) as reader:
            reader.seek(self.start)
            return reader.take(self.end - self.start)


MetadataValue = Scalar | GgufArray


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One metadata pair, at the bytes from `start` to `end` of its file, including the key."""

    key: str
    kind: ValueType
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
        entries: dict[str, MetadataEntry] = {}
        for _ in range(n_pairs):
            entry = _pair(reader)
            if entry.key in entries:
                raise reader.fail(f"the metadata key {entry.key} occurs twice")
            entries[entry.key] = entry
        alignment = _alignment(reader, entries)
        described = [_tensor(reader, file_index) for _ in range(n_tensors)]
        tensors = _placed(reader, described, padded(reader.position, alignment), alignment)
    return alignment, MappingProxyType(entries), tensors


_SMALLEST_PAIR = 8 + 1 + 4 + 1  # key of one byte, type, value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name of one byte, one dimension, type, offset


class _Reader(Closeable):
    """Reads a file through a window of fixed size; refuses positions beyond the end."""

    WINDOW = 1 << 18

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            kind = special_kind(path.stat().st_mode)
            if kind is not None:
                raise ModelError(f"{path} is {kind}, not a GGUF file")
            self._file = open_regular(path, buffering=0)
        except FileNotFoundError as error:
            raise ModelError(f"{path}: there is no such file") from error
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        self.size = path.stat().st_size
        self._window = b""
        self._base = 0
        self._at = 0

    def close(self) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {message}; download or copy it again")

    def seek(self, position: int) -> None:
        if position > self.size:
            beyond = position - self.size
            raise self.fail(f"a length in its header points {beyond} bytes past the file's end")
        if position > MAX_HEADER_BYTES:
            raise self.fail(f"its header is larger than {MAX_HEADER_BYTES >> 20} MiB")
        self._at = position - self._base
        if self._at > len(self._window) or self._at < 0:
            self._window, self._base, self._at = b"", position, 0

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._window) - self._at:
            self._fill(n_bytes)
        start = self._at
        self._at += n_bytes
        return self._window[start : self._at]

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def string(self) -> bytes:
        return self.take(self.number(U64))

    def skip_strings(self, count: int) -> None:
        """Skip `count` strings, in the inner loop of reading a vocabulary."""
        window, at = self._window, self._at
        unpack, last = U64.unpack_from, len(self._window) - 8
        for _ in range(count):
            if at > last:
                self.seek(self._base + at)
                self._fill(8)
                window, at, last = self._window, self._at, len(self._window) - 8
            at += 8 + unpack(window, at)[0]
        self.seek(self._base + at)

    def _fill(self, n_bytes: int) -> None:
        """Move the window to the position, so that it has at least `n_bytes`."""
        start = self.position
        self.seek(start + n_bytes)
        self._base, self._at = start, 0
        try:
            self._file.seek(self._base)
            self._window = self._file.read(max(n_bytes, self.WINDOW)) or b""
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(self._window) < n_bytes:
            raise self.fail("the file became shorter while it was read")


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
        if count > min(MAX_ENTRIES, reader.remaining // smallest):
            raise reader.fail(f"it claims {count} {what} in {reader.size} bytes")
    return n_tensors, n_pairs


def _pair(reader: _Reader) -> MetadataEntry:
    start = reader.position
    key = _name(reader, reader.string(), "metadata key")
    kind = _value_type(reader, key)
    value: MetadataValue
    if kind is ValueType.ARRAY:
        value = _array(reader, key)
    elif kind is ValueType.STRING:
        value = reader.string().decode("utf-8", "surrogateescape")
    else:
        layout = SCALARS[kind]
        value = layout.unpack(reader.take(layout.size))[0]
    return MetadataEntry(key, kind, value, start, reader.position)


def _array(reader: _Reader, key: str) -> GgufArray:
    kind = _value_type(reader, key)
    count = reader.number(U64)
    if kind is ValueType.ARRAY:
        raise reader.fail(f"{key} is an array of arrays")
    smallest = 8 if kind is ValueType.STRING else SCALARS[kind].size
    if count > reader.remaining // smallest:
        raise reader.fail(f"{key} claims {count} elements, more than the file can hold")
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
        raise reader.fail(f"{key} has the unknown value type {code}") from None


def _name(reader: _Reader, raw: bytes, what: str) -> str:
    if not raw or b"\0" in raw:
        raise reader.fail(f"a {what} is empty or holds a zero byte")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise reader.fail(f"the {what} {raw[:64]!r} is not UTF-8") from None


def _alignment(reader: _Reader, entries: Mapping[str, MetadataEntry]) -> int:
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.kind is not ValueType.UINT32 or not isinstance(value, int):
        raise reader.fail(f"general.alignment must be uint32, it is {entry.kind.name.lower()}")
    if value < DEFAULT_ALIGNMENT or value & (value - 1):
        # the format requires a power of two, the kernels alignment to 32
        raise reader.fail(f"general.alignment {value} is not a power of two of at least 32")
    return value


def _tensor(reader: _Reader, file_index: int) -> TensorEntry:
    """A tensor's entry, with an offset relative to the start of the data."""
    raw = reader.string()
    name = _name(reader, raw, "tensor name")
    if len(raw) > MAX_NAME_BYTES:
        raise reader.fail(f"the tensor name {name[:64]!r} is longer than {MAX_NAME_BYTES} bytes")
    n_dims = reader.number(U32)
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise reader.fail(f"{name} has {n_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(reader.number(U64) for _ in range(n_dims))
    code = reader.number(U32)
    if code not in TENSOR_TYPES:
        raise ModelError(f"{reader.path}: {name} has tensor type {code}, which is not known")
    kind = TENSOR_TYPES[code]
    n_elements = math.prod(shape)
    if not n_elements or kind.nbytes(n_elements) > reader.size:
        raise reader.fail(
            f"{name} has the impossible shape {list(shape)} in a file of {reader.size:,} bytes"
        )
    if shape[0] % kind.block_size:
        raise reader.fail(
            f"{name} has rows of {shape[0]}, no multiple of the {kind.block_size} that make a "
            f"{kind.name} block"
        )
    return TensorEntry(name, shape, kind, file_index, reader.number(U64), kind.nbytes(n_elements))


def _placed(
    reader: _Reader, tensors: list[TensorEntry], data_offset: int, alignment: int
) -> tuple[TensorEntry, ...]:
    """The tensors with offsets from the file's start. Raises ModelError for gaps and overlaps."""
    placed: dict[str, TensorEntry] = {}
    expected = 0
    for tensor in tensors:
        if tensor.name in placed:
            raise reader.fail(f"the tensor {tensor.name} occurs twice")
        if tensor.offset != expected:
            raise reader.fail(
                f"{tensor.name} should lie at offset {expected} of the data, the header says "
                f"{tensor.offset}"
            )
        offset = data_offset + expected
        placed[tensor.name] = replace(tensor, offset=offset)
        expected = padded(expected + tensor.nbytes, alignment)
    if placed:
        end = offset + tensor.nbytes
        if end > reader.size:
            raise ModelError(
                f"{reader.path} is cut short: {end - reader.size} of {end} bytes are missing; "
                "download or copy it again"
            )
    return tuple(placed.values())
