"""What a GGUF header says to people. Reads no weights and knows nothing of llama.cpp."""

from __future__ import annotations

import math
from collections import Counter

from edgespec.values import ENLARGED_FROM, ModelDetails
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
        embedding_length=header.embedding_length,
        heads=heads,
        kv_heads=kv_heads,
        context_length=header.context_length,
        licence=_text(header, "general.license"),
        equals=_text(header, ENLARGED_FROM),
        files=header.paths,
    )


def _of_all_layers(header: GgufFile, suffix: str) -> int | None:
    """A count that all layers have in common; None if there is none."""
    value = header.metadata.get(header.key(suffix))
    found = set(value.values()) if isinstance(value, GgufArray) else {value}
    count = found.pop() if len(found) == 1 else None
    return count if isinstance(count, int) else None


def _text(header: GgufFile, key: str) -> str | None:
    value = header.metadata.get(key)
    return value if isinstance(value, str) and value else None
