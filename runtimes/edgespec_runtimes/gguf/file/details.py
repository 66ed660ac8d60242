"""The details of a GGUF header for people. Reads no weights and knows nothing of llama.cpp."""

from __future__ import annotations

import math
from collections import Counter

from edgespec.values import ENLARGED_FROM, ExpertDetails, ModelDetails
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile


def details_of(header: GgufFile) -> ModelDetails:
    """The details of a model whose header was validated."""
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
        experts=_experts(header),
        files=header.paths,
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
    """A count that all layers have in common; None if there is none."""
    value = header.metadata.get(header.key(suffix))
    found = set(value.values()) if isinstance(value, GgufArray) else {value}
    count = found.pop() if len(found) == 1 else None
    return count if isinstance(count, int) else None


def _text(header: GgufFile, key: str) -> str | None:
    value = header.metadata.get(key)
    return value if isinstance(value, str) and value else None
