"""Writes a GGUF model that has some of another's layers, in their order; everything else stays.

What that does to the text is nobody's business here: such a model is a draft, and drafts are
measured.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import EdgespecError, ModelError
from edgespec.files.unfinished import unfinished_file
from edgespec.ports import Progress
from edgespec_runtimes.enlarge.gguf.enlarge import CHUNK_BYTES
from edgespec_runtimes.enlarge.sizing import check_room
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.layout import MAGIC, SCALARS, ValueType, padded
from edgespec_runtimes.gguf.file.parts import GgufArray, MetadataEntry, TensorEntry
from edgespec_runtimes.gguf.file.validation import validate


def subset(
    source: Path, out: Path, layers: Sequence[int], progress: Progress | None = None
) -> None:
    """Write `out` from the `layers` of `source`, ascending indices. Memory stays constant.

    Arrays of the metadata with one element a layer lose the same layers. Raises ModelError for
    layers that are not there, EdgespecError when the disk is too small or fails.
    """
    header = read_header(source)
    validate(header)
    if not layers or list(layers) != sorted(set(layers) & set(range(header.n_layers))):
        raise ModelError(
            f"{source} has {header.n_layers} layers: {list(layers)} are not among them"
        )
    tensors = list(_kept(header, layers))
    head = _head(header, layers, tensors)
    size = len(head) + sum(padded(tensor.nbytes, header.alignment) for _, tensor in tensors)
    check_room(out, size)
    try:
        with unfinished_file(out) as file, ExitStack() as stack:
            parts = [stack.enter_context(path.open("rb")) for path in header.paths]
            file.write(head)
            for n, (_, tensor) in enumerate(tensors):
                file.writelines(_content(parts[tensor.file_index], tensor))
                file.write(bytes(padded(tensor.nbytes, header.alignment) - tensor.nbytes))
                if progress is not None:
                    progress("leaving layers out", (n + 1) / len(tensors))
    except OSError as error:
        raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def subset_bytes(source: Path, layers: Sequence[int]) -> int:
    """Bytes of the weights of these layers and of what is in no layer."""
    return sum(tensor.nbytes for _, tensor in _kept(read_header(source), layers))


def _kept(header: GgufFile, layers: Sequence[int]) -> Iterator[tuple[str, TensorEntry]]:
    """Tensors under their new names, in file order."""
    place = {f"blk.{layer}": f"blk.{n}" for n, layer in enumerate(layers)}
    for tensor in header.tensors:
        block = ".".join(tensor.name.split(".")[:2])
        if not tensor.name.startswith("blk."):
            yield tensor.name, tensor
        elif block in place:
            yield place[block] + tensor.name[len(block) :], tensor


def _head(
    header: GgufFile, layers: Sequence[int], tensors: Sequence[tuple[str, TensorEntry]]
) -> bytes:
    """Preamble, metadata and descriptions of the tensors, padded to where the weights begin."""
    kept = [entry for key, entry in header.entries.items() if not key.startswith("split.")]
    with header.path.open("rb") as file:
        pairs = [_pair(file, header, entry, layers) for entry in kept]
    described, offset = [], 0
    for name, tensor in tensors:
        extents = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        described.append(_text(name) + extents + struct.pack("<IQ", tensor.type.code, offset))
        offset += padded(tensor.nbytes, header.alignment)
    preamble = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head = b"".join([preamble, *pairs, *described])
    return head.ljust(padded(len(head), header.alignment), b"\0")


def _pair(file: BinaryIO, header: GgufFile, entry: MetadataEntry, layers: Sequence[int]) -> bytes:
    """The pair as it stands in the file, or as fewer layers want it."""
    value = entry.value
    if entry.key == header.key("block_count"):
        return _text(entry.key) + struct.pack("<II", ValueType.UINT32, len(layers))
    if _has_one_a_layer(header, entry):
        assert isinstance(value, GgufArray)
        elements = value.values()
        layout = struct.Struct(f"<{len(layers)}{SCALARS[value.kind].format[1:]}")
        packed = layout.pack(*(elements[layer] for layer in layers))
        kind = struct.pack("<IIQ", ValueType.ARRAY, value.kind, len(layers))
        return _text(entry.key) + kind + packed
    file.seek(entry.start)
    return file.read(entry.end - entry.start)


def _has_one_a_layer(header: GgufFile, entry: MetadataEntry) -> bool:
    return (
        isinstance(entry.value, GgufArray)
        and entry.key.startswith(f"{header.architecture}.")
        and len(entry.value) == header.n_layers
        and entry.value.kind in SCALARS
    )


def _content(file: BinaryIO, tensor: TensorEntry) -> Iterator[bytes]:
    file.seek(tensor.offset)
    left = tensor.nbytes
    while left:
        piece = file.read(min(CHUNK_BYTES, left))
        if not piece:
            raise ModelError(f"{file.name} became shorter while it was read")
        left -= len(piece)
        yield piece


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw
