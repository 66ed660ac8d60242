"""Selects the weights that are packed for the CPU (repacked).

They are the same whether a model is resident or paged, so that results do not depend on the
budget. llama.cpp packs resident ones while loading; paged ones are packed in place by
`kernels.packer`: pinned ones after reading, streamed ones when they are used. The file stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT, PER_LAYER_EMBEDDINGS
from edgespec_runtimes.gguf.kernels.packer import BufferFields, Packer, packs_invariantly
from edgespec_runtimes.gguf.llama import ggml, loading
from edgespec_runtimes.gguf.weights.segments import WeightGroup

_LOOKED_UP = (EMBEDDINGS, PER_LAYER_EMBEDDINGS, "position_embd.weight")


def multiplied_matrices(header: GgufFile) -> list[TensorEntry]:
    """The matrices of matrix products, without tables that are only looked up."""
    has_head = OUTPUT in header.tensors_by_name
    return [
        tensor
        for tensor in header.tensors
        if _is_matrix(tensor)
        and (tensor.name not in _LOOKED_UP or (tensor.name == EMBEDDINGS and not has_head))
    ]


def packed_matrices(header: GgufFile) -> list[TensorEntry]:
    """The multiplied matrices that are packed for the CPU, resident or paged.

    Their packed products are batch invariant. Embeddings, also if tied to the output head, and
    stacked experts remain as stored: paged ones are read by the row and by the expert.
    """
    if not loading.packs():
        return []
    return [
        tensor
        for tensor in multiplied_matrices(header)
        if len(tensor.shape) == 2
        and tensor.name != EMBEDDINGS
        and packs_invariantly(tensor.type.code, *tensor.shape)
    ]


def placement_as_stored(header: GgufFile, elsewhere: Collection[str] = ()) -> Sequence[str] | None:
    """Patterns of the names of resident tensors that llama.cpp would pack, and must not; None if
    it must not pack any.

    Tensors in `elsewhere` are not named, because llama.cpp would place them in memory, too.
    """
    packed = {tensor.name for tensor in packed_matrices(header)}
    if not packed:
        return None
    stored = [
        tensor.name
        for tensor in header.tensors
        if tensor.name not in packed and tensor.name not in elsewhere and _would_be_packed(tensor)
    ]
    return name_patterns(stored, packed)


def name_patterns(names: Collection[str], others: Collection[str]) -> list[str]:
    """A few regular expressions that match all of `names` and none of `others`.

    llama.cpp compiles each of them for every tensor.
    """
    kept = {_any_layer(name) for name in others}
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(_any_layer(name), []).append(re.escape(name))
    return [
        f"^({'|'.join(found)})$" if pattern in kept else f"^{pattern}$"
        for pattern, found in layers.items()
    ]


def _any_layer(name: str) -> str:
    """A regular expression for the names of the same tensor in all layers."""
    return re.sub("[0-9]+", "[0-9]+", re.escape(name))


def _would_be_packed(tensor: TensorEntry) -> bool:
    """True if llama.cpp packs the tensor where it multiplies with it."""
    is_matrix = len(tensor.shape) in (2, 3) and tensor.type.block_size > 1
    return is_matrix and ggml.packing_buffer_type(tensor.type.code, *tensor.shape[:2]) is not None


def packed_fields(
    packer: Packer, header: GgufFile, groups: Sequence[WeightGroup]
) -> dict[int, BufferFields]:
    """Buffer fields of packed tensors by the tensor's address."""
    packed = {tensor.name for tensor in packed_matrices(header)}
    found = {}
    for weight in (weight for group in groups for weight in group.weights):
        if weight.entry.name in packed:
            fields = packer.buffer_fields(weight.entry.type.code, *weight.entry.shape)
            assert fields is not None
            found[weight.address] = fields
    return found


def _is_matrix(tensor: TensorEntry) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and "conv1d" not in tensor.name
