"""Writes a GGUF model that has some of another's layers, in their order; everything else stays.

The result computes another function: it is meant as a draft. Does not judge how good it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.errors import ModelError
from edgespec.ports import Progress
from edgespec_runtimes.enlarge.gguf.gguf_writer import (
    NewModel,
    copied_pairs,
    copied_tensor,
    pack_array,
    pack_pair,
)
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, TensorEntry, read_header
from edgespec_runtimes.gguf.file.layout import SCALARS
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
    described = [(tensor.name, tensor.type, tensor.shape) for tensor in tensors]
    pairs = copied_pairs(header, dict(_changed(header, layers)))
    contents = (copied_tensor(header, tensor) for tensor in tensors)
    model = NewModel(pairs, described, header.alignment)
    model.write(out, contents, "leaving layers out", progress)


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


def _changed(header: GgufFile, layers: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Metadata of fewer layers, packed, by key: their number, and arrays with one element a
    layer."""
    block_count = header.key("block_count")
    yield block_count, pack_pair(block_count, len(layers))
    for key, value in header.metadata.items():
        if (
            isinstance(value, GgufArray)
            and key.startswith(f"{header.architecture}.")
            and len(value) == header.n_layers
            and value.kind in SCALARS
        ):
            elements = value.values()
            yield key, pack_array(key, value.kind, [elements[layer] for layer in layers])
