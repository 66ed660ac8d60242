"""Tables of rotary angles, as long as the longest text that a model knows, cut to those in use.

Knows which operators look positions up in tables of their own; the tables' bytes are not read.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from edgespec_runtimes.onnx.files.source import Source
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, reads

_TABLES = {FUSED_ATTENTION: (7, 8), "RotaryEmbedding": (2, 3)}
"""Indices of those inputs of onnxruntime's operators that are tables with a row for a position."""
_DOMAIN = "com.microsoft"


def trimmed(graph: onnx.GraphProto, source: Source, n_rows: int) -> Source:
    """The source with the first `n_rows` of such tables; the graph's tensors change in place."""
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
    """Tensors of which positions are looked up and that nothing else reads."""
    tables: set[str] = set()
    others: set[str] = set()
    for node in graph.node:
        places = _TABLES.get(node.op_type, ()) if node.domain == _DOMAIN else ()
        looked_up = {name for i, name in enumerate(node.input) if i in places}
        tables |= looked_up
        others.update(name for name in reads(node) if name not in looked_up)
    return tables - others
