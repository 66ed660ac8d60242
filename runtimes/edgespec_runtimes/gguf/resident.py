"""What a model's weights take when all of them stay in memory, packed for the CPU or not.

Knows which tensors of a file multiply. How ggml packs one is `packed_sizes`' business.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.packed_sizes import packed_bytes

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_LOOKED_UP = (_EMBEDDINGS, "per_layer_token_embd.weight", "position_embd.weight")


@dataclass(frozen=True, slots=True)
class ResidentWeights:
    """Sizes in bytes."""

    weights: int
    loading: int
    """Of the tensor that is read whole before it is packed; what is not packed is read in place."""


def resident_weights(
    header: GgufFile, elsewhere: Collection[str] = (), head_elsewhere: bool = False
) -> ResidentWeights:
    """Without those that lie elsewhere, by name. Tries packing first, if no process of this build
    of llama.cpp has done so here."""
    here = [tensor for tensor in header.tensors if tensor.name not in elsewhere]
    total = sum(tensor.nbytes for tensor in here)
    if not loading.packing().allowed:
        return ResidentWeights(total, 0)
    packed = [
        (tensor, nbytes)
        for tensor in here
        if tensor.name not in _LOOKED_UP and (nbytes := packed_size(tensor)) is not None
    ]
    total += sum(nbytes - tensor.nbytes for tensor, nbytes in packed)
    table = header.tensors_by_name.get(_EMBEDDINGS)
    is_head = _HEAD not in header.tensors_by_name and not head_elsewhere
    copied = packed_size(table) if table is not None and is_head else None
    if table is not None and copied is not None:
        # a table that is also the head is looked up as it is, and multiplied with a packed copy
        packed.append((table, copied))
        total += copied
    return ResidentWeights(total, max((tensor.nbytes for tensor, _ in packed), default=0))


def packed_size(tensor: TensorEntry) -> int | None:
    """None for what stays as it is. Experts lie behind one another, packed as they were."""
    if len(tensor.shape) not in (2, 3) or tensor.type.block_size == 1:
        return None
    nbytes = packed_bytes(tensor.type.code, tensor.shape[0], tensor.shape[1])
    return nbytes if nbytes is None or len(tensor.shape) == 2 else tensor.nbytes
