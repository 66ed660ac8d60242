"""Exchanges the packed constants of a session for those of another piece of the same graph.

onnxruntime can save a session's constants as it packed them. A session of such a file maps it
privately: what is written to the mapping are its constants from then on. Only Linux tells where a
file is mapped.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError
from edgespec_runtimes.onnx.ort.devices import CPU
from edgespec_runtimes.onnx.ort.file_mappings import mapped_ranges
from edgespec_runtimes.onnx.ort.sessions import SAVED_WEIGHTS, OrtSession

_PACKED = "prepacked_"
"""Prefix of the fields with packed forms: `name|offset;bytes;checksum|...`."""
_ALIGNMENT = 64
"""Alignment that kernels give to what they pack; within a packed form they align by address."""
_FILE_ALIGNMENT = 256
"""Alignment in a file below which onnxruntime 1.32 copies packed forms instead of mapping them."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A weight as a session reads it: as it is stored (form -1), or one of its packed forms."""

    name: str
    form: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The constants of a record, one after another."""

    constants: tuple[Constant, ...]

    def places(self) -> Iterator[tuple[int, Constant]]:
        """Constants and where they begin in a record."""
        begin = 0
        for constant in self.constants:
            yield begin, constant
            begin += constant.nbytes + -constant.nbytes % _ALIGNMENT

    @property
    def record_bytes(self) -> int:
        return max((begin + constant.nbytes for begin, constant in self.places()), default=0)


@dataclass(frozen=True)
class SavedPiece:
    """A piece as onnxruntime saved it: its optimised graph, and a file with its weights."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path.with_suffix(SAVED_WEIGHTS)

    @cached_property
    def graph(self) -> onnx.ModelProto:
        return onnx.load(str(self.path), load_external_data=False)

    @cached_property
    def offsets(self) -> dict[Constant, int]:
        """Offsets of constants in the file."""
        return {
            constant: offset
            for tensor in self.graph.graph.initializer
            for constant, offset in constants_of(tensor)
        }

    def record(self, layout: Layout) -> bytearray:
        """A record of the piece. Raises EdgespecError if a constant is missing."""
        content = bytearray(layout.record_bytes)
        with self.weights.open("rb") as file:
            for begin, constant in layout.places():
                if constant not in self.offsets:
                    raise EdgespecError(
                        f"onnxruntime did not save {constant.name} as it did before"
                    )
                file.seek(self.offsets[constant])
                content[begin : begin + constant.nbytes] = file.read(constant.nbytes)
        return content


def save(graph: bytes, folder: Path, n_threads: int, into: Path) -> SavedPiece:
    """Save a piece, whose weights are external data below `folder`. Raises ModelError."""
    # no other mapping of this process has a name like this
    path = into / f"{secrets.token_hex(8)}.onnx"
    OrtSession(
        graph, "a piece", n_threads, CPU.providers(0), folder, keeps_memory=False, saved_as=path
    ).close()
    _align(SavedPiece(path))
    return SavedPiece(path)


def constants_of(tensor: TensorProto) -> list[tuple[Constant, int]]:
    """A part of a saved weight that a session reads, and its offset in the file."""
    fields = {field.key: field.value for field in tensor.external_data}
    if not fields:
        return []
    packed = [
        (Constant(tensor.name, form, nbytes), offset)
        for form, (offset, nbytes) in enumerate(
            blob for key, content in fields.items() if _is_packed(key) for blob in _blobs(content)
        )
    ]
    stored = Constant(tensor.name, -1, int(fields["length"]))
    return packed or [(stored, int(fields["offset"]))]


def _is_packed(key: str) -> bool:
    return key.startswith(_PACKED)


def _blobs(content: str) -> list[tuple[int, int]]:
    """Offset and bytes of each packed form."""
    blobs = (blob.split(";") for blob in content.split("|")[1:])
    return [(int(offset), int(nbytes)) for offset, nbytes, _ in blobs]


def _align(piece: SavedPiece) -> None:
    """Rewrite the files of a piece with all constants aligned, which onnxruntime does not do."""
    moved = piece.weights.with_suffix(".aligned")
    with piece.weights.open("rb") as source, moved.open("wb") as target:
        for tensor in piece.graph.graph.initializer:
            for field in tensor.external_data:
                if field.key == "offset":
                    length = next(f.value for f in tensor.external_data if f.key == "length")
                    field.value = str(_moved(source, target, int(field.value), int(length)))
                elif _is_packed(field.key):
                    name, *blobs = field.value.split("|")
                    for i, (offset, nbytes) in enumerate(_blobs(field.value)):
                        checksum = blobs[i].rpartition(";")[2]
                        begin = _moved(source, target, offset, nbytes)
                        blobs[i] = f"{begin};{nbytes};{checksum}"
                    field.value = "|".join([name, *blobs])
    moved.replace(piece.weights)
    piece.path.write_bytes(piece.graph.SerializeToString())


def _moved(source: BinaryIO, target: BinaryIO, offset: int, nbytes: int) -> int:
    """Append a range of a file to another one, aligned; returns where."""
    begin = target.tell() + -target.tell() % _FILE_ALIGNMENT
    source.seek(offset)
    target.seek(begin)
    target.write(source.read(nbytes))
    return begin


class ExchangedSession(Closeable):
    """A session of a saved piece whose constants are exchanged."""

    def __init__(
        self, saved: SavedPiece, layout: Layout, n_threads: int, graph: bytes | None = None
    ) -> None:
        """`graph` is what the session computes, if not the whole piece. Raises EdgespecError where
        the constants cannot be found in memory."""
        self.session = OrtSession(
            graph or saved.path.read_bytes(),
            "a piece",
            n_threads,
            CPU.providers(0),
            saved.path.parent,
            is_optimised=True,
        )
        self._copies: list[tuple[int, int, int]] = []
        """Address, place in the record and bytes of each copy."""
        # a constant is exchanged in all mappings that contain it
        mapped = mapped_ranges(f"/{saved.weights.name}")
        for begin, constant in layout.places():
            offset, nbytes = saved.offsets[constant], constant.nbytes
            copies = [
                (start + offset - first, begin, nbytes)
                for start, first, size in mapped
                if first <= offset and offset + nbytes <= first + size
            ]
            if not copies:
                self.close()
                raise EdgespecError("onnxruntime does not map its packed weights")
            self._copies += copies

    def take(self, record: int) -> None:
        """Copy the constants from the record at an address."""
        for address, begin, nbytes in self._copies:
            ctypes.memmove(address, record + begin, nbytes)

    def close(self) -> None:
        self._copies = []
        self.session.close()
