"""What an ONNX model's files say to people. Reads no weights and knows nothing of onnxruntime."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from onnx import TensorProto

from edgespec.values import ModelDetails
from edgespec_runtimes.growing import MARKER
from edgespec_runtimes.onnx.graph import PACKED
from edgespec_runtimes.onnx.roles import Roles
from edgespec_runtimes.onnx.source import Source

_NAMES: dict[int, str] = {
    TensorProto.FLOAT: "F32",
    TensorProto.FLOAT16: "F16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "INT8",
}


def details_of(source: Source, roles: Roles) -> ModelDetails:
    """The details of a model whose graph was validated."""
    four_bits = {node.input[1] for node in source.model.graph.node if node.op_type in PACKED}
    elements = Counter[str]()
    for tensor in source.model.graph.initializer:
        weight = source.weights.get(tensor.name)
        if weight is None:
            continue
        if tensor.name in four_bits:
            elements["INT4"] += 2 * math.prod(weight.shape)
        else:
            kind = weight.kind
            elements[_NAMES.get(kind, TensorProto.DataType.Name(kind))] += math.prod(weight.shape)
    config = source.config or source.genai_config.get("decoder", {})
    heads = _count(config, "num_attention_heads")
    props = {entry.key: entry.value for entry in source.model.metadata_props}
    return ModelDetails(
        format="onnx",
        quantization=elements.most_common(1)[0][0] if elements else None,
        parameters=elements.total(),
        embedding_length=_count(config, "hidden_size"),
        heads=heads,
        kv_heads=roles.kv_heads,
        context_length=context_length(source),
        equals=props.get(MARKER) or None,
        files=source.files,
    )


def context_length(source: Source) -> int | None:
    """The tokens that the model was trained on, as its configuration says."""
    return (
        _count(source.config, "max_position_embeddings")
        or _count(source.config, "n_positions")
        or _count(source.genai_config, "context_length")
    )


def _count(config: Any, key: str) -> int | None:
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, int) and value > 0 else None
