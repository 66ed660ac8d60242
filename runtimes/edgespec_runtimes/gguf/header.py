"""Reads what stands before the weights of a GGUF file: metadata, and where each tensor lies.

Knows the container, nothing of architectures (`shapes` does) and nothing of llama.cpp's objects.
Every count and length is held against the size of the file before it is believed, arrays stay on
disk until they are asked for, and the file is read, never mapped.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from edgespec.errors import ModelError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_HEADER_BYTES = 256 << 20
MAX_ENTRIES = 1 << 16
"""Tensors, and metadata pairs, that a file may have; the largest models have a few thousand."""


class ValueType(IntEnum):
    """Types of metadata values, with the numbers that the format gives them."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True, slots=True)
class TensorType:
    """How elements are stored: `block_size` of them in `block_bytes`."""

    code: int
    name: str
    block_size: int
    block_bytes: int

    def nbytes(self, n_elements: int) -> int:
        return n_elements // self.block_size * self.block_bytes


# enum ggml_type and the sizes in ggml-common.h; the gaps are types that llama.cpp has removed
TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        code: TensorType(code, name, block_size, block_bytes)
        for code, name, block_size, block_bytes in (
            (0, "F32", 1, 4),
            (1, "F16", 1, 2),
            (2, "Q4_0", 32, 18),
            (3, "Q4_1", 32, 20),
            (6, "Q5_0", 32, 22),
            (7, "Q5_1", 32, 24),
            (8, "Q8_0", 32, 34),
            (9, "Q8_1", 32, 36),
            (10, "Q2_K", 256, 84),
            (11, "Q3_K", 256, 110),
            (12, "Q4_K", 256, 144),
            (13, "Q5_K", 256, 176),
            (14, "Q6_K", 256, 210),
            (15, "Q8_K", 256, 292),
            (16, "IQ2_XXS", 256, 66),
            (17, "IQ2_XS", 256, 74),
            (18, "IQ3_XXS", 256, 98),
            (19, "IQ1_S", 256, 50),
            (20, "IQ4_NL", 32, 18),
            (21, "IQ3_S", 256, 110),
            (22, "IQ2_S", 256, 82),
            (23, "IQ4_XS", 256, 136),
            (24, "I8", 1, 1),
            (25, "I16", 1, 2),
            (26, "I32", 1, 4),
            (27, "I64", 1, 8),
            (28, "F64", 1, 8),
            (29, "IQ1_M", 256, 56),
            (30, "BF16", 1, 2),
            (34, "TQ1_0", 256, 54),
            (35, "TQ2_0", 256, 66),
            (39, "MXFP4", 32, 17),
            (40, "NVFP4", 64, 36),
            (41, "Q1_0", 128, 18),
            (42, "Q2_0", 64, 18),
        )
    }
)

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata, left in its file until `values` is called."""

    path: Path
    kind: ValueType
    count: int
    start: int
    end: int
    """Bytes of the elements in the file, `start` to `end`."""

    def __len__(self) -> int:
        return self.count

    def values(self) -> list[Scalar]:
        """All elements, read now. Strings keep bytes that are not UTF-8 as lone surrogates."""
        if self.kind is ValueType.STRING:
            return [text.decode("utf-8", "surrogateescape") for text in self.strings()]
        layout = struct.Struct(f"<{self.count}{_SCALARS[self.kind].format[1:]}")
        return list(layout.unpack(self._read()))

    def strings(self) -> Iterator[bytes]:
        """The elements of an array of strings, as they stand in the file."""
        data, at = self._read(), 0
        for _ in range(self.count):
            (length,) = _U64.unpack_from(data, at)
            at += 8 + length
            yield data[at - length : at]

    def _read(self) -> bytes:
        with _Reader(self.path) as reader:
            reader.seek(self.start)
            return reader.take(self.end - self.start)


MetadataValue = Scalar | GgufArray


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One metadata pair and the bytes `start` to `end` that it takes in its file, key included."""

    key: str
    kind: ValueType
    value: MetadataValue
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies. `shape` is in ggml's order: `shape[0]` elements make a row."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    file_index: int
    offset: int
    """First byte, from the start of its own file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufPart:
    """One file of a model; most models have one."""

    path: Path
    version: int
    size_bytes: int
    alignment: int
    data_offset: int
    """Where the first tensor's data begins."""


@dataclass(frozen=True)
class GgufFile:
    """Header of a model, of all its files when it is split; `entries` are those of the first."""

    parts: tuple[GgufPart, ...]
    entries: Mapping[str, MetadataEntry]
    tensors: tuple[TensorEntry, ...]

    @property
    def path(self) -> Path:
        """The file to hand to a loader: the first part."""
        return self.parts[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path for part in self.parts)

    @property
    def version(self) -> int:
        return self.parts[0].version

    @property
    def alignment(self) -> int:
        return self.parts[0].alignment

    @property
    def data_offset(self) -> int:
        return self.parts[0].data_offset

    @property
    def is_split(self) -> bool:
        return len(self.parts) > 1

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def metadata(self) -> Mapping[str, MetadataValue]:
        return MappingProxyType({key: entry.value for key, entry in self.entries.items()})

    @cached_property
    def tensors_by_name(self) -> Mapping[str, TensorEntry]:
        return MappingProxyType({tensor.name: tensor for tensor in self.tensors})

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """What the file calls itself, or its file name."""
        value = self.metadata.get("general.name")
        return value if isinstance(value, str) and value else self.path.stem

    @property
    def n_layers(self) -> int:
        return self.integer(self.key("block_count"))

    @property
    def context_length(self) -> int:
        return self.integer(self.key("context_length"))

    @property
    def embedding_length(self) -> int:
        return self.integer(self.key("embedding_length"))

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary, 0 for a model without one."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, GgufArray):
            return len(tokens)
        return self.integer(self.key("vocab_size"), 0)

    def key(self, suffix: str) -> str:
        """The metadata key `suffix` of this model's architecture."""
        return f"{self.architecture}.{suffix}"

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the metadata. Raises ModelError when it is missing or something else."""
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: metadata has no {key}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.path}: {key} must be an integer, it is {_describe(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata. Raises ModelError when it is missing or something else."""
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: metadata has no {key}")
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: {key} must be a string, it is {_describe(value)}")
        return value


def read_header(path: Path) -> GgufFile:
    """Header of the GGUF file at `path`, with the headers of the other parts of a split model.

    Any part of a split model may be named. Raises ModelError when a file is missing, is no GGUF
    file, contradicts itself or is shorter than its tensors.
    """
    named = _read_part(Path(path), 0)
    count = _split_value(named, "split.count", 1)
    if count <= 1:
        return GgufFile((named.part,), named.entries, named.tensors)
    places = _split_paths(named, count)
    return _join([_read_part(place, index) for index, place in enumerate(places)])


@dataclass(frozen=True, slots=True)
class _PartHeader:
    part: GgufPart
    entries: Mapping[str, MetadataEntry]
    tensors: tuple[TensorEntry, ...]


_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
_SMALLEST_PAIR = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
_SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class _Reader:
    """A file read through one window of fixed size; refuses to believe what lies past its end."""

    WINDOW = 1 << 18

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                kind = "a directory" if path.is_dir() else "not a regular file"
                raise ModelError(f"{path} is {kind}, not a GGUF file")
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise ModelError(f"{path}: there is no such file") from error
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        self.size = path.stat().st_size
        self._window = b""
        self._base = 0
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {message}")

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
        return self.take(self.number(_U64))

    def skip_strings(self, count: int) -> None:
        """Pass over `count` strings: the inner loop of reading a vocabulary."""
        window, at = self._window, self._at
        unpack, last = _U64.unpack_from, len(self._window) - 8
        for _ in range(count):
            if at > last:
                self.seek(self._base + at)
                self._fill(8)
                window, at, last = self._window, self._at, len(self._window) - 8
            at += 8 + unpack(window, at)[0]
        self.seek(self._base + at)

    def _fill(self, n_bytes: int) -> None:
        """Move the window to the position, and let it hold `n_bytes` at least."""
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


def _read_part(path: Path, file_index: int) -> _PartHeader:
    with _Reader(path) as reader:
        version, n_tensors, n_pairs = _preamble(reader)
        entries: dict[str, MetadataEntry] = {}
        for _ in range(n_pairs):
            entry = _pair(reader)
            if entry.key in entries:
                raise reader.fail(f"the metadata key {entry.key} stands in it twice")
            entries[entry.key] = entry
        alignment = _alignment(reader, entries)
        described = [_tensor(reader, file_index) for _ in range(n_tensors)]
        data_offset = padded(reader.position, alignment)
        tensors = _placed(reader, described, data_offset, alignment)
        part = GgufPart(path, version, reader.size, alignment, data_offset)
    return _PartHeader(part, MappingProxyType(entries), tensors)


def _preamble(reader: _Reader) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata pairs."""
    path = reader.path
    if reader.size == 0:
        raise ModelError(f"{path} is empty")
    magic = reader.take(min(4, reader.size))
    if magic != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it begins with {magic!r}")
    version = reader.number(_U32)
    if version & 0xFFFF == 0:
        raise ModelError(f"{path} is a big-endian GGUF file: convert it to little endian first")
    if version not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}: only versions 2 and 3 are supported")
    n_tensors, n_pairs = reader.number(_U64), reader.number(_U64)
    for count, smallest, what in (
        (n_pairs, _SMALLEST_PAIR, "metadata pairs"),
        (n_tensors, _SMALLEST_TENSOR, "tensors"),
    ):
        if count > min(MAX_ENTRIES, reader.remaining // smallest):
            raise reader.fail(f"it claims {count} {what} in {reader.size} bytes")
    return version, n_tensors, n_pairs


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
        layout = _SCALARS[kind]
        value = layout.unpack(reader.take(layout.size))[0]
    return MetadataEntry(key, kind, value, start, reader.position)


def _array(reader: _Reader, key: str) -> GgufArray:
    kind = _value_type(reader, key)
    count = reader.number(_U64)
    if kind is ValueType.ARRAY:
        raise reader.fail(f"{key} is an array of arrays")
    smallest = 8 if kind is ValueType.STRING else _SCALARS[kind].size
    if count > reader.remaining // smallest:
        raise reader.fail(f"{key} claims {count} elements, more than the file can hold")
    start = reader.position
    if kind is ValueType.STRING:
        reader.skip_strings(count)
    else:
        reader.seek(start + count * smallest)
    return GgufArray(reader.path, kind, count, start, reader.position)


def _value_type(reader: _Reader, key: str) -> ValueType:
    code = reader.number(_U32)
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
        # a power of two is the format's law; 32 is what the kernels read aligned
        raise reader.fail(f"general.alignment {value} is not a power of two of at least 32")
    return value


def _tensor(reader: _Reader, file_index: int) -> TensorEntry:
    """A tensor's description; its offset still counts from the start of the data."""
    raw = reader.string()
    name = _name(reader, raw, "tensor name")
    if len(raw) > MAX_NAME_BYTES:
        raise reader.fail(f"the tensor name {name[:64]!r} is longer than {MAX_NAME_BYTES} bytes")
    n_dims = reader.number(_U32)
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise reader.fail(f"{name} has {n_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(reader.number(_U64) for _ in range(n_dims))
    code = reader.number(_U32)
    if code not in TENSOR_TYPES:
        raise ModelError(f"{reader.path}: {name} has tensor type {code}, which is not known")
    kind = TENSOR_TYPES[code]
    n_elements = 1
    for extent in shape:
        n_elements *= extent
    if not n_elements or kind.nbytes(n_elements) > reader.size:
        raise reader.fail(f"{name} has the impossible shape {list(shape)}")
    if shape[0] % kind.block_size:
        raise reader.fail(
            f"{name} has rows of {shape[0]}, no multiple of the {kind.block_size} that make a "
            f"{kind.name} block"
        )
    return TensorEntry(name, shape, kind, file_index, reader.number(_U64), kind.nbytes(n_elements))


def _placed(
    reader: _Reader, tensors: list[TensorEntry], data_offset: int, alignment: int
) -> tuple[TensorEntry, ...]:
    """The tensors with offsets from the start of the file, which lie there without gap or overlap."""
    placed: dict[str, TensorEntry] = {}
    expected = 0
    for tensor in tensors:
        if tensor.name in placed:
            raise reader.fail(f"the tensor {tensor.name} stands in it twice")
        if tensor.offset != expected:
            raise reader.fail(
                f"{tensor.name} should lie at offset {expected} of the data, the header says "
                f"{tensor.offset}"
            )
        offset = data_offset + expected
        placed[tensor.name] = TensorEntry(
            tensor.name, tensor.shape, tensor.type, tensor.file_index, offset, tensor.nbytes
        )
        expected = padded(expected + tensor.nbytes, alignment)
    if placed:
        end = offset + tensor.nbytes
        if end > reader.size:
            raise ModelError(
                f"{reader.path} is cut short: {end - reader.size} of {end} bytes are missing; "
                "download or copy it again"
            )
    return tuple(placed.values())


def padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _split_value(header: _PartHeader, key: str, default: int | None = None) -> int:
    kind = ValueType.INT32 if key == "split.tensors.count" else ValueType.UINT16
    entry = header.entries.get(key)
    if entry is None and default is not None:
        return default
    if entry is None or entry.kind is not kind or not isinstance(entry.value, int):
        found = "missing" if entry is None else entry.kind.name.lower()
        raise ModelError(f"{header.part.path}: {key} must be {kind.name.lower()}, it is {found}")
    return entry.value


def _split_paths(named: _PartHeader, count: int) -> list[Path]:
    path = named.part.path
    number = _split_value(named, "split.no")
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise ModelError(
            f"{path} is part {number + 1} of {count} of a split model and must be named "
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf, next to the others"
        )
    places = [
        path.with_name(f"{match['prefix']}-{index + 1:05d}-of-{count:05d}.gguf")
        for index in range(count)
    ]
    for index, place in enumerate(places):
        if not place.exists():
            raise ModelError(f"part {index + 1} of {count} is missing: {place}")
    return places


def _join(parts: list[_PartHeader]) -> GgufFile:
    count = len(parts)
    tensors: dict[str, TensorEntry] = {}
    for index, header in enumerate(parts):
        path = header.part.path
        if (_split_value(header, "split.no"), _split_value(header, "split.count")) != (
            index,
            count,
        ):
            raise ModelError(f"{path} does not call itself part {index + 1} of {count}")
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ModelError(f"{path}: the tensor {tensor.name} is in another part already")
            tensors[tensor.name] = tensor
    claimed = _split_value(parts[0], "split.tensors.count")
    if claimed != len(tensors):
        raise ModelError(
            f"{parts[0].part.path}: its {count} parts should hold {claimed} tensors, they hold "
            f"{len(tensors)}"
        )
    return GgufFile(
        tuple(header.part for header in parts), parts[0].entries, tuple(tensors.values())
    )


def _describe(value: MetadataValue) -> str:
    return "an array" if isinstance(value, GgufArray) else repr(value)
