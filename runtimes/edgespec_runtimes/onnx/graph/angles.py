"""Cuts tables of rotary angles from a model's longest context to the context in use.

Knows the operators that look positions up in tables; the tables' bytes are not read.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, reads

_TABLES = {FUSED_ATTENTION: (7, 8), "RotaryEmbedding": (2, 3)}
"""Indices of inputs of onnxruntime's operators that are tables with a row per position."""
_DOMAIN = "com.microsoft"


def trimmed(graph: onnx.GraphProto, source: SourceModel, n_rows: int) -> SourceModel:
    """The source with such tables cut to `n_rows`; the graph's tensors are changed in place."""
    weights = dict(source.weights)
    tables = _tables(graph)
    for tensor in graph.initializer:
        weight = weights.get(tensor.name)
        if tensor.name not in tables or weight is None or weight.shape[0] <= n_rows:
            continue
        row_bytes = weight.nbytes // weight.shape[0]
        weights[tensor.name] = replace(
            weight,
            shape=(n_rows, *weight.shape[1:]),
            extent=replace(weight.extent, nbytes=n_rows * row_bytes),
        )
        tensor.dims[0] = n_rows
    return replace(source, weights=weights)


def _tables(graph: onnx.GraphProto) -> set[str]:
    """Tensors that are only used to look up positions."""
    tables: set[str] = set()
    others: set[str] = set()
    for node in graph.node:
        places = _TABLES.get(node.op_type, ()) if node.domain == _DOMAIN else ()
        looked_up = {name for i, name in enumerate(node.input) if i in places}
        tables |= looked_up
        others.update(name for name in reads(node) if name not in looked_up)
    return tables - others
