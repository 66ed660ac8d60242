"""Selects the weights that are packed for the CPU (repacked), and tells of those that llama.cpp
rounds differently in batches of several rows.

They are the same whether a model is resident or paged, so that results do not depend on the
budget. They are packed in place by `kernels.packer`: those that stay in memory after reading,
streamed ones when they are used. The file stays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgespec.errors import Cancelled
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT, PER_LAYER_EMBEDDINGS
from edgespec_runtimes.gguf.kernels.invariant_kernels import (
    PRODUCT_TILE_ROWS,
    TILED_TYPES,
    UNQUANTISED,
    varies_as_stored,
)
from edgespec_runtimes.gguf.kernels.packer import BufferFields, Packer, packs_invariantly
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.weights.segments import WeightGroup

LEAST_BATCH_SIZE = 32
"""Tokens of the smallest batches of prompts that round by row."""
_EXPERTS = "_exps."
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


def pack_resident(header: GgufFile, model: loading.Model, stop: AbortFlag) -> None:
    """Pack the weights of a model that are in this process's memory, in place; not on Windows,
    where llama.cpp does not tell where they are. Raises Cancelled."""
    packed = {tensor.name: tensor for tensor in packed_matrices(header)}
    if not packed or sys.platform == "win32":
        return
    packer = Packer()
    model.keep(packer)
    for name, address in model.tensors():
        if stop.is_set:
            raise Cancelled("loading was cancelled")
        if (entry := packed.get(name)) and abi.is_in_host_memory(address):
            shape = entry.type.code, *entry.shape
            fields = packer.buffer_fields(*shape)
            packer.pack(abi.GgmlTensor.from_address(address).data, *shape)
            fields.write_to(address)


def packed_fields(
    packer: Packer, header: GgufFile, groups: Sequence[WeightGroup]
) -> dict[int, BufferFields]:
    """Buffer fields of packed tensors by the tensor's address."""
    packed = {tensor.name for tensor in packed_matrices(header)}
    return {
        weight.address: packer.buffer_fields(weight.entry.type.code, *weight.entry.shape)
        for group in groups
        for weight in group.weights
        if weight.entry.name in packed
    }


def _is_matrix(tensor: TensorEntry) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and "conv1d" not in tensor.name


def rounding_notes(
    header: GgufFile,
    name: str,
    *,
    products_are_invariant: bool,
    is_packed: bool,
    tiles_are_avoidable: bool,
    on_device: str = "",
) -> list[str]:
    """Reasons why a draft may change a token if two are almost equally probable; usually none.

    `products_are_invariant`: single rows use the kernel for several rows, or vice versa; this is
    impossible for stacked matrices other than experts.
    `is_packed`: weights are packed for the CPU where that is invariant.
    `tiles_are_avoidable`: llama.cpp can be prevented from using tiles, as on Linux.
    `on_device`: names of devices that compute layers with kernels of their own.
    """
    packed = {tensor.name for tensor in packed_matrices(header)} if is_packed else set()
    stored = [tensor for tensor in multiplied_matrices(header) if tensor.name not in packed]
    varying: dict[str, list[str]] = {}
    for tensor in stored:
        is_evened = products_are_invariant and len(tensor.shape) == 2
        # the kernel for experts computes each row separately
        if not is_evened and _EXPERTS not in tensor.name and varies_as_stored(tensor.type.name):
            kind = tensor.type.name
            kind = "not quantised" if kind in UNQUANTISED else f"{kind}, as stored"
            varying.setdefault(kind, []).append(tensor.name)
    reasons = [
        f"{len(names)} of its matrices are {kind} ({names[0]} is the first)"
        for kind, names in sorted(varying.items())
    ]
    n_tiled = sum(tensor.type.name in TILED_TYPES for tensor in stored)
    if n_tiled and not tiles_are_avoidable:
        reasons.append(
            f"{n_tiled} of its matrices go through tiles here from {PRODUCT_TILE_ROWS} rows on"
        )
    if on_device:
        reasons.append(f"layers of it are computed by {on_device}")
    return [
        f"{name}: {reason}, and llama.cpp rounds several rows otherwise than a single one: "
        "where two tokens are almost equally likely, a draft or an earlier text may change which "
        "one is written"
        for reason in reasons
    ]


def turn_notes(header: GgufFile, info: ModelInfo) -> list[str]:
    """A note if continuing a conversation rounds differently than reading the whole text again."""
    if info.tree_capable or TILED_TYPES.isdisjoint(multiplied_types(header)):
        return []
    return [
        f"{info.name}: its state goes on from turn to turn, and llama.cpp reads whole texts with "
        "another rounding than what follows them: where two tokens are almost equally likely, a "
        "further turn may differ from the same text read at once"
    ]


def invariant_types(header: GgufFile, on_gpu: bool) -> set[str]:
    """Weight types whose products are or can be made batch invariant.

    Beside a GPU only those whose tiles are switched: replacing products takes 2 ms a graph,
    and its passes hardly more.
    """
    types = multiplied_types(header)
    if on_gpu:
        types = {name for name in types & TILED_TYPES if not varies_as_stored(name)}
    return types


def has_prompt_tiles(header: GgufFile, attention_is_tiled: bool) -> bool:
    """True if a prompt is computed in tiles if texts are aligned with them.

    Tiles are several times faster. Experts never go through them: those would depend on how many
    rows of a batch chose an expert.
    """
    is_tiled = attention_is_tiled or not TILED_TYPES.isdisjoint(multiplied_types(header))
    experts = (tensor for tensor in multiplied_matrices(header) if _EXPERTS in tensor.name)
    return is_tiled and TILED_TYPES.isdisjoint(tensor.type.name for tensor in experts)


def multiplied_types(header: GgufFile) -> set[str]:
    """Types of the matrices in matrix products."""
    return {tensor.type.name for tensor in multiplied_matrices(header)}
