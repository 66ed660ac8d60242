"""Writes a GGUF model that has some of another's layers, in their order; everything else stays.

The result computes another function: it is meant as a draft. Does not judge how good it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import ModelError
from edgespec.files.unfinished import unfinished_file
from edgespec.ports import Progress
from edgespec_runtimes.enlarge.gguf.disk import check_room, writing
from edgespec_runtimes.enlarge.gguf.packing import (
    CHUNK_BYTES,
    pack_head,
    pack_pair,
    pack_string,
    read_bytes,
)
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.layout import SCALARS, ValueType, padded
from edgespec_runtimes.gguf.file.parts import GgufArray, MetadataEntry, TensorEntry
from edgespec_runtimes.gguf.file.validation import validate


def subset(
    source: Path, out: Path, layers: Sequence[int], progress: Progress | None = None
) -> None:
    """Write `out` from the `layers` of `source`, ascending indices. Memory stays constant.

    Arrays of the metadata with one element a layer lose the same layers. Raises ModelError for
    layers that the source lacks, EdgespecError when the disk is too small or fails.
    """
    header = read_header(source)
    validate(header)
    if not layers or list(layers) != sorted(set(layers) & set(range(header.n_layers))):
        raise ModelError(
            f"{source} has {header.n_layers} layers: name some of 0 to {header.n_layers - 1} "
            f"in ascending order, not {list(layers)}"
        )
    tensors = list(_kept(header, layers))
    kept = [entry for key, entry in header.entries.items() if not key.startswith("split.")]
    with header.path.open("rb") as file:
        pairs = [_pair(file, header, entry, layers) for entry in kept]
    head = pack_head(pairs, [(t.name, t.type, t.shape) for t in tensors], header.alignment)
    size = len(head) + sum(padded(tensor.nbytes, header.alignment) for tensor in tensors)
    check_room(out, size)
    with writing(out), unfinished_file(out) as file, ExitStack() as stack:
        parts = [stack.enter_context(path.open("rb")) for path in header.paths]
        file.write(head)
        for n, tensor in enumerate(tensors, 1):
            file.writelines(_content(parts[tensor.file_index], tensor))
            file.write(bytes(padded(tensor.nbytes, header.alignment) - tensor.nbytes))
            if progress is not None:
                progress("leaving layers out", n / len(tensors))


def subset_bytes(source: Path, layers: Sequence[int]) -> int:
    """Bytes of the weights of these layers and of what is in no layer."""
    return sum(tensor.nbytes for tensor in _kept(read_header(source), layers))


def _kept(header: GgufFile, layers: Sequence[int]) -> Iterator[TensorEntry]:
    """Tensors under their new names, in file order."""
    new_block = {f"blk.{layer}": f"blk.{n}" for n, layer in enumerate(layers)}
    for tensor in header.tensors:
        block = ".".join(tensor.name.split(".")[:2])
        if not tensor.name.startswith("blk."):
            yield tensor
        elif block in new_block:
            yield replace(tensor, name=new_block[block] + tensor.name[len(block) :])


def _pair(file: BinaryIO, header: GgufFile, entry: MetadataEntry, layers: Sequence[int]) -> bytes:
    """The metadata entry as stored, or changed for fewer layers."""
    value = entry.value
    if entry.key == header.key("block_count"):
        return pack_pair(entry.key, len(layers))
    if _has_one_a_layer(header, entry):
        assert isinstance(value, GgufArray)
        elements = value.values()
        layout = struct.Struct(f"<{len(layers)}{SCALARS[value.kind].format[1:]}")
        packed = layout.pack(*(elements[layer] for layer in layers))
        kind = struct.pack("<IIQ", ValueType.ARRAY, value.kind, len(layers))
        return pack_string(entry.key) + kind + packed
    return read_bytes(file, entry.start, entry.end - entry.start)


def _has_one_a_layer(header: GgufFile, entry: MetadataEntry) -> bool:
    return (
        isinstance(entry.value, GgufArray)
        and entry.key.startswith(f"{header.architecture}.")
        and len(entry.value) == header.n_layers
        and entry.value.kind in SCALARS
    )


def _content(file: BinaryIO, tensor: TensorEntry) -> Iterator[bytes]:
    for start in range(0, tensor.nbytes, CHUNK_BYTES):
        n_bytes = min(CHUNK_BYTES, tensor.nbytes - start)
        yield read_bytes(file, tensor.offset + start, n_bytes)
