"""What of a model lets llama.cpp round otherwise when a pass has several rows: it is said, because
it cannot be helped.

Knows kinds of weights and of attention; where rows can be made to round alike is elsewhere.
"""

from __future__ import annotations

from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama.reference_kernels import PRODUCT_TILE_ROWS, TILED_TYPES
from edgespec_runtimes.gguf.packing import (
    multiplied_matrices,
    packed_matrices,
    packing_is_invariant,
)

UNQUANTISED = ("F32", "F16", "BF16")
"""One row of such matrices is multiplied by another kernel than several, unless that is mended."""
UNEVEN = "IQ4_NL"
"""Quantised and yet so, unless it is packed."""
_EXPERTS = "_exps."


def rounding_notes(
    header: GgufFile,
    name: str,
    flash_attn: str,
    products_are_invariant: bool = False,
    is_packed: bool = False,
    tiles_are_avoidable: bool = True,
) -> list[str]:
    """Why a draft may change a token where two are as good as equal, in sentences; often none.

    `products_are_invariant`: single rows of unquantised weights go through the kernel of several,
    or the other way round; there is no way for stacks of matrices but experts.
    `is_packed`: weights that can be are packed for the CPU, as those in memory are.
    `tiles_are_avoidable`: llama.cpp can be kept from tiles, as it is on Linux.
    """
    matrices = [
        tensor.name
        for tensor in unquantised_matrices(header)
        if not (products_are_invariant and len(tensor.shape) == 2)
    ]
    why = []
    if matrices:
        why.append(
            f"{len(matrices)} of its matrices are not quantised ({matrices[0]} is the first)"
        )
    if uneven := sum(t.type.name == UNEVEN for t in _as_stored(header, is_packed)):
        why.append(f"{uneven} of its matrices are {UNEVEN}, as stored")
    tiled = sum(tensor.type.name in TILED_TYPES for tensor in _as_stored(header, is_packed))
    if tiled and not tiles_are_avoidable:
        why.append(
            f"{tiled} of its matrices go through tiles here from {PRODUCT_TILE_ROWS} rows on"
        )
    if is_packed and not packing_is_invariant(header):
        why.append("it stays in memory, packed for the CPU")
    if flash_attn == "off":
        why.append("flash attention is off")
    return [
        f"{name}: {reason}, and llama.cpp rounds otherwise for several rows than for one: where "
        "two tokens are as good as equal, a draft or an earlier text may change which is written"
        for reason in why
    ]


def multiplied_types(header: GgufFile) -> set[str]:
    """Of the matrices that activations are multiplied with."""
    return {tensor.type.name for tensor in multiplied_matrices(header)}


def unquantised_matrices(header: GgufFile) -> list[TensorEntry]:
    """Those that activations are multiplied with. Experts have one kernel, for each row alone."""
    return [
        tensor
        for tensor in multiplied_matrices(header)
        if tensor.type.name in UNQUANTISED and _EXPERTS not in tensor.name
    ]


def _as_stored(header: GgufFile, is_packed: bool) -> list[TensorEntry]:
    packed = {tensor.name for tensor in packed_matrices(header)} if is_packed else set()
    return [tensor for tensor in multiplied_matrices(header) if tensor.name not in packed]
