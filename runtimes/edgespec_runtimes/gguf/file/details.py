"""Describes a model by its GGUF header. Reads no weights and knows nothing of llama.cpp."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from edgespec.registry import vocabulary_fingerprint, without_padding
from edgespec.values import ExpertDetails, HeadDetails, ModelDetails, ModelInfo, OwnLayers
from edgespec_runtimes.gguf.file.chat_format import TEMPLATE, recommended_sampling
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile
from edgespec_runtimes.gguf.file.heads import (
    N_LAYERS,
    has_layers,
    is_head,
    missing_matrices,
    obstacle,
    own_shape,
    read_states,
)

ENLARGED_FROM = "edgespec.enlarged_from"
"""Metadata key of enlarged models with the name of the model that they equal."""


def details_of(header: GgufFile) -> ModelDetails:
    """Details of a model with a valid header."""
    elements = Counter[str]()
    for tensor in header.tensors:
        elements[tensor.type.name] += math.prod(tensor.shape)
    heads = _of_all_layers(header, "attention.head_count")
    kv_heads = _of_all_layers(header, "attention.head_count_kv")
    if header.key("attention.head_count_kv") not in header.metadata:
        kv_heads = heads
    return ModelDetails(
        format="gguf",
        quantization=elements.most_common(1)[0][0],
        parameters=elements.total(),
        layers=header.n_layers,
        embedding_length=header.embedding_length,
        heads=heads,
        kv_heads=kv_heads,
        context_length=header.context_length,
        licence=_text(header, "general.license"),
        equals=_text(header, ENLARGED_FROM),
        sampling=recommended_sampling(header),
        chats=TEMPLATE in header.metadata,
        experts=_experts(header),
        head=_head(header) if is_head(header) else None,
        own_layers=_own_layers(header),
        files=header.paths,
        **_alone(header),
    )


def _head(header: GgufFile) -> HeadDetails:
    shape = own_shape(header) if has_layers(header) else read_states(header)
    return HeadDetails(shape.layers, shape.n_values, missing_matrices(header))


def _own_layers(header: GgufFile) -> OwnLayers | None:
    if not has_layers(header) or is_head(header):
        return None
    return OwnLayers(header.integer(header.key(N_LAYERS), 0), obstacle(header))


def _alone(header: GgufFile) -> dict[str, Any]:
    """Info and vocabulary of a draft that cannot be prepared without its target."""
    made_for = header.made_for
    if not made_for and is_head(header) and missing_matrices(header):
        made_for = vocabulary_fingerprint(without_padding(header.token_table()))
    return {"info": info_of(header, header.n_vocab), "fingerprint": made_for} if made_for else {}


def info_of(header: GgufFile, n_vocab: int) -> ModelInfo:
    return ModelInfo(
        name=header.name,
        architecture=header.architecture,
        n_vocab=n_vocab,
        n_ctx=header.context_length,
        n_layers=header.n_layers,
        size_bytes=header.weight_bytes,
    )


def _experts(header: GgufFile) -> ExpertDetails | None:
    n_experts = _of_all_layers(header, "expert_count") or 0
    n_used = _of_all_layers(header, "expert_used_count") or 0
    stacked = [
        tensor
        for tensor in header.tensors
        if len(tensor.shape) == 3 and tensor.shape[2] == n_experts and "_exps." in tensor.name
    ]
    if not n_used or not stacked:
        return None
    nbytes = sum(tensor.nbytes for tensor in stacked)
    unused_bytes = nbytes * (n_experts - n_used) // n_experts
    return ExpertDetails(n_experts, n_used, nbytes, header.weight_bytes - unused_bytes)


def _of_all_layers(header: GgufFile, suffix: str) -> int | None:
    """A count that is equal for all layers, else None."""
    value = header.metadata.get(header.key(suffix))
    found = set(value.values()) if isinstance(value, GgufArray) else {value}
    count = found.pop() if len(found) == 1 else None
    return count if isinstance(count, int) else None


def _text(header: GgufFile, key: str) -> str | None:
    value = header.metadata.get(key)
    return value if isinstance(value, str) and value else None
