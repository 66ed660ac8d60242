"""What of a model lets llama.cpp round otherwise when a pass has several rows: it is said, because
it cannot be helped.

Knows kinds of weights and of attention; where rows can be made to round alike is elsewhere.
"""

from __future__ import annotations

from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.resident import packed_size

UNQUANTISED = ("F32", "F16", "BF16")
"""Several rows of such matrices are multiplied by a kernel of their own; one row is not."""
UNEVEN = ("IQ4_NL",)
"""Quantised, and yet so."""
UNEVEN_IF_PACKED = ("Q2_K", "Q4_K", "Q5_K", "Q6_K")
"""Packed for the CPU, one to three rows are multiplied by another kernel than four."""
_ROUTER = "ffn_gate_inp"
_LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight")
_TIED_HEAD = "token_embd.weight"


def rounding_notes(
    header: GgufFile,
    name: str,
    flash_attn: str,
    routers_by_row: bool = False,
    is_packed: bool = False,
) -> list[str]:
    """Why a draft may change a token where two are as good as equal, in sentences; often none.

    `routers_by_row`: what chooses experts is computed one row at a time, as paging does it.
    `is_packed`: weights go into buffers where the CPU packs them, as those in memory do.
    """
    matrices = [
        tensor.name
        for tensor in unquantised_matrices(header)
        if not (routers_by_row and is_router(tensor))
    ]
    why = []
    if matrices:
        why.append(
            f"{len(matrices)} of its matrices are not quantised ({matrices[0]} is the first)"
        )
    if uneven := sum(_is_matrix(t) and t.type.name in UNEVEN for t in header.tensors):
        why.append(f"{uneven} of its matrices are {' or '.join(UNEVEN)}")
    if is_packed and has_uneven_packing(header):
        why.append("its K-quants are packed for the CPU, as all of it stays in memory")
    if flash_attn == "off":
        why.append("flash attention is off")
    return [
        f"{name}: {reason}, and llama.cpp rounds otherwise for several rows than for one: where "
        "two tokens are as good as equal, a draft may change which is written"
        for reason in why
    ]


def unquantised_matrices(header: GgufFile) -> list[TensorEntry]:
    """Those that activations are multiplied with."""
    has_head = "output.weight" in header.tensors_by_name
    return [
        tensor
        for tensor in header.tensors
        if is_unquantised(tensor)
        and (tensor.name not in _LOOKED_UP or (tensor.name == _TIED_HEAD and not has_head))
    ]


def has_uneven_packing(header: GgufFile) -> bool:
    """Whether a matrix, once packed for the CPU, rounds otherwise for several rows than for one."""
    return any(
        tensor.type.name in UNEVEN_IF_PACKED and packed_size(tensor) is not None
        for tensor in header.tensors
        if tensor.name not in _LOOKED_UP
    )


def is_unquantised(tensor: TensorEntry) -> bool:
    """Whether it is a matrix whose products with several rows round otherwise than with one."""
    return tensor.type.name in UNQUANTISED and _is_matrix(tensor)


def is_router(tensor: TensorEntry) -> bool:
    """Whether it chooses experts. Such matrices are small: row by row costs little."""
    return _ROUTER in tensor.name


def _is_matrix(tensor: TensorEntry) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and "conv1d" not in tensor.name
