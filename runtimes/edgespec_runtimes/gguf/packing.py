"""Selects the weights that are packed for the CPU (repacked), and computes their packed sizes.

Paged weights are packed in place: pinned ones after reading, streamed ones when they are used. The
file is unchanged, and results do not depend on the budget. `llama.packer` does the packing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama import ggml, loading
from edgespec_runtimes.gguf.llama.batch_invariance import is_invariant_when_packed
from edgespec_runtimes.gguf.llama.packer import BufferFields, Packer
from edgespec_runtimes.gguf.segments import WeightGroup

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_LOOKED_UP = (_EMBEDDINGS, "per_layer_token_embd.weight", "position_embd.weight")


@dataclass(frozen=True, slots=True)
class ResidentWeights:
    """Sizes of resident weights in bytes."""

    weights: int
    loading: int
    """Bytes of the largest packed tensor, which is first read whole."""


def resident_weights(
    header: GgufFile, elsewhere: Collection[str] = (), head_elsewhere: bool = False
) -> ResidentWeights:
    """Sizes of the weights, except tensors in `elsewhere`; tests packing, unless cached."""
    tensors = [tensor for tensor in header.tensors if tensor.name not in elsewhere]
    total = sum(tensor.nbytes for tensor in tensors)
    if not loading.packing().allowed:
        return ResidentWeights(total, 0)
    packed = [
        (tensor, nbytes)
        for tensor in tensors
        if tensor.name not in _LOOKED_UP and (nbytes := packed_size(tensor)) is not None
    ]
    total += sum(nbytes - tensor.nbytes for tensor, nbytes in packed)
    table = header.tensors_by_name.get(_EMBEDDINGS)
    is_head = _HEAD not in header.tensors_by_name and not head_elsewhere
    copied = packed_size(table) if table is not None and is_head else None
    if table is not None and copied is not None:
        # embeddings tied to the head are looked up unpacked, and multiplied as a packed copy
        packed.append((table, copied))
        total += copied
    return ResidentWeights(total, max((tensor.nbytes for tensor, _ in packed), default=0))


def packed_size(tensor: TensorEntry) -> int | None:
    """Packed bytes of a tensor; None if it is not packed. Stacked experts keep their size."""
    if len(tensor.shape) not in (2, 3) or tensor.type.block_size == 1:
        return None
    nbytes = ggml.packed_bytes(tensor.type.code, tensor.shape[0], tensor.shape[1])
    return nbytes if nbytes is None or len(tensor.shape) == 2 else tensor.nbytes


def multiplied_matrices(header: GgufFile) -> list[TensorEntry]:
    """The matrices of matrix products, without tables that are only looked up."""
    has_head = _HEAD in header.tensors_by_name
    return [
        tensor
        for tensor in header.tensors
        if _is_matrix(tensor)
        and (tensor.name not in _LOOKED_UP or (tensor.name == _EMBEDDINGS and not has_head))
    ]


def packed_matrices(header: GgufFile) -> list[TensorEntry]:
    """The multiplied matrices that packing for the CPU changes; embeddings are never packed."""
    return [
        tensor
        for tensor in multiplied_matrices(header)
        if tensor.name != _EMBEDDINGS and packed_size(tensor) is not None
    ]


def packing_is_invariant(header: GgufFile) -> bool:
    """True if products with all packed matrices round the same for one and several rows."""
    shapes = {(t.type.code, t.shape[0], t.shape[1]) for t in packed_matrices(header)}
    return all(is_invariant_when_packed(*shape) for shape in shapes)


def packs_when_paged(header: GgufFile) -> bool:
    """True if paged weights are packed, like resident ones.

    They are not if packed products round differently for several rows than for one, which unpacked
    ones do not.
    """
    can_pack = loading.packing().allowed and bool(packed_matrices(header))
    return can_pack and packing_is_invariant(header)


def packed_fields(
    packer: Packer, header: GgufFile, groups: Sequence[WeightGroup]
) -> dict[int, BufferFields]:
    """Buffer fields of packed tensors by the tensor's address.

    Stacked experts remain unpacked: they have no packed kernel for several rows.
    """
    if not packs_when_paged(header):
        return {}
    found = {}
    for weight in (weight for group in groups for weight in group.weights):
        if len(weight.entry.shape) == 2 and not weight.looked_up:
            fields = packer.buffer_fields(weight.entry.type.code, *weight.entry.shape)
            if fields is not None:
                found[weight.address] = fields
    return found


def _is_matrix(tensor: TensorEntry) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and "conv1d" not in tensor.name
