"""Describes an ONNX model. Reads no weights and knows nothing of onnxruntime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from edgespec.values import ModelDetails
from edgespec_runtimes.onnx.files.chat_format import genai_search, recommended_sampling
from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, PACKED, angle_switch
from edgespec_runtimes.onnx.graph.functions import whole_numbers

_NAMES: dict[int, str] = {
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "INT8",
}


def details_of(source: SourceModel, roles: Roles) -> ModelDetails:
    """Details of a model with a valid graph."""
    bits, others = _blocks(source)
    elements = Counter[str]()
    for weight in source.weights.values():
        if weight.name in bits:
            elements[f"INT{bits[weight.name]}"] += 8 * weight.nbytes // bits[weight.name]
        elif weight.name not in others:
            kind = weight.kind
            elements[_NAMES.get(kind, TensorProto.DataType.Name(kind))] += math.prod(weight.shape)
    config = source.config or source.genai_decoder
    heads = _count(config, "num_attention_heads")
    return ModelDetails(
        format="onnx",
        quantization=elements.most_common(1)[0][0] if elements else None,
        parameters=elements.total(),
        embedding_length=_count(config, "hidden_size"),
        heads=heads,
        kv_heads=roles.kv_heads,
        context_length=context_length(source),
        sampling=recommended_sampling(source.generation_config or genai_search(source.folder)),
        files=source.files,
    )


def _blocks(source: SourceModel) -> tuple[dict[str, int], set[str]]:
    """Bits per weight of block-quantised tensors, and tensors that are no weights: scales and
    tables of angles.
    """
    bits: dict[str, int] = {}
    others: set[str] = set()
    for node in source.model.graph.node:
        if node.op_type in PACKED:
            bits[node.input[1]] = whole_numbers(node).get("bits", 4)
            others.update(node.input[2:4])
        elif node.op_type == FUSED_ATTENTION:
            others.update(node.input[7:9])
    return bits, others


def context_length(source: SourceModel) -> int | None:
    """The trained context length by the model's configuration, limited by its angles."""
    configured = (
        _count(source.config, "max_position_embeddings")
        or _count(source.config, "n_positions")
        or _count(source.genai_config, "context_length")
    )
    switch = angle_switch(source.model)
    return min(configured, switch[1]) if configured and switch else configured


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None
