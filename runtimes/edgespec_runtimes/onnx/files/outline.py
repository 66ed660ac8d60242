"""Reads an ONNX file without its weights: larger tensors become references into the file.

Parses the protobuf wire format and checks every length against the size of the file. Knows the four
messages that lead to a tensor's bytes, but not the meaning of the graph.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgespec.concurrency.owning import Closeable
from edgespec.errors import ModelError
from edgespec.files.regular import open_regular

INLINE_BYTES = 64
"""Tensors up to this size stay in the outline: shapes, axes and scalars."""
MAX_OUTLINE_BYTES = 128 << 20
"""Size limit of an outline; the graphs of the largest decoders take a few megabytes."""
THIS_FILE = "\0self"
"""Location of tensors inside the model file; no path contains a zero byte."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 9, 13, 14
_TENSOR_FLOATS, _TENSOR_DOUBLES = 4, 10
_AS_IN_MEMORY = (_TENSOR_RAW, _TENSOR_FLOATS, _TENSOR_DOUBLES)
"""Fields that hold a tensor's elements as they are in memory."""
_REFERENCE = (_TENSOR_EXTERNAL, _TENSOR_LOCATION)


def read_outline(path: Path) -> bytes:
    """A serialized ModelProto in which larger tensors are references into the file at `path`.

    Raises ModelError if it is not a regular file, is truncated, or is too large for a graph.
    """
    with _Window(path) as window:
        return _outline(window, 0, window.size, (_MODEL_GRAPH, _GRAPH_INITIALIZER))


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    """Position of the field's key."""
    content: int
    """Position of the content of a length-delimited field."""
    end: int


class _Window(Closeable):
    """Reads a file through a buffer, and limits the bytes copied from it."""

    STEP = 1 << 20

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_regular(path, buffering=0)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        self.size = os.fstat(self._file.fileno()).st_size
        self._data, self._base = b"", 0
        self._copied = 0

    def close(self) -> None:
        self._file.close()

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self._path} is no ONNX model, or is damaged: {message}")

    def take(self, start: int, end: int) -> bytes:
        self._copied += end - start
        if self._copied > MAX_OUTLINE_BYTES:
            raise self.fail(f"its graph takes more than {MAX_OUTLINE_BYTES >> 20} MiB")
        return self._read(start, end)

    def varint(self, at: int) -> tuple[int, int]:
        """The varint at `at`, and the position after it."""
        data = self._read(at, min(at + 10, self.size))
        number = 0
        for i, byte in enumerate(data):
            number |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return number, at + i + 1
        raise self.fail(f"a number at byte {at:,} does not end")

    def _read(self, start: int, end: int) -> bytes:
        first, last = start - self._base, end - self._base
        if first < 0 or last > len(self._data):
            self._base = start
            try:
                self._file.seek(start)
                self._data = self._file.read(max(end - start, self.STEP)) or b""
            except OSError as error:
                raise ModelError(f"{self._path} cannot be read: {error.strerror}") from error
            first, last = 0, end - start
            if last > len(self._data):
                raise self.fail("the file became shorter while it was read")
        return self._data[first:last]


def _fields(window: _Window, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message from `start` to `end`, without contents."""
    at = start
    while at < end:
        key, content = window.varint(at)
        number, kind = key >> 3, key & 7
        stop = content
        if kind == _VARINT:
            _, stop = window.varint(content)
        elif kind == _BYTES:
            length, content = window.varint(content)
            stop = content + length
        elif kind in {_FIXED64, _FIXED32}:
            stop = content + (8 if kind == _FIXED64 else 4)
        else:
            raise window.fail(f"a field of unknown kind at byte {at:,}")
        if stop > end or number == 0:
            missing = f"{stop - window.size:,} bytes are missing" if stop > window.size else ""
            raise window.fail(missing or f"the field at byte {at:,} ends outside its message")
        yield _Field(number, kind, at, content, stop)
        at = stop


def _outline(window: _Window, start: int, end: int, inside: tuple[int, ...]) -> bytes:
    """The message from `start` to `end`; `inside` has the field numbers that lead to tensors."""
    if not inside:
        return _tensor(window, list(_fields(window, start, end)))
    parts = []
    for field in _fields(window, start, end):
        if field[:2] == (inside[0], _BYTES):
            content = _outline(window, field.content, field.end, inside[1:])
            parts.append(_message(field.number, content))
        else:
            parts.append(window.take(field.start, field.end))
    return b"".join(parts)


def _tensor(window: _Window, fields: list[_Field]) -> bytes:
    """A TensorProto whose elements, if they are many, are a reference to where they are.

    A reference of its own, or the statement that it has none, would contradict that one.
    """
    elements = [field for field in fields if field.number in _AS_IN_MEMORY]
    if len(elements) != 1:
        return _taken(window, fields)
    kept = [field for field in fields if field.number not in _REFERENCE]
    (data,) = elements
    if data.kind != _BYTES or data.end - data.content <= INLINE_BYTES:
        return _taken(window, kept)
    kept.remove(data)
    return _taken(window, kept) + _reference(data.content, data.end - data.content)


def _taken(window: _Window, fields: list[_Field]) -> bytes:
    return b"".join(window.take(field.start, field.end) for field in fields)


def _reference(offset: int, nbytes: int) -> bytes:
    """Fields that make a TensorProto refer to a position in this file."""
    entries = (("location", THIS_FILE), ("offset", str(offset)), ("length", str(nbytes)))
    pairs = (_message(1, key.encode()) + _message(2, value.encode()) for key, value in entries)
    external = b"".join(_message(_TENSOR_EXTERNAL, pair) for pair in pairs)
    return external + _varint(_TENSOR_LOCATION << 3 | _VARINT) + _varint(1)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
