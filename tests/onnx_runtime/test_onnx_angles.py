"""Tables of angles are read as far as the context in use reaches, and no further."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx
from onnx import NodeProto, TensorProto, helper

from edgespec.paging.reader import Extent
from edgespec_runtimes.onnx.files.source_model import SourceModel, StoredWeight
from edgespec_runtimes.onnx.graph.angles import trimmed

ROWS, ANGLES = 1000, 8
DOMAIN = "com.microsoft"
FUSED = ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"]
ROTATION = ["x", "positions", "cos", "sin"]


def rows_left(nodes: list[NodeProto], n_rows: int) -> dict[str, int]:
    """Rows of each table that nodes read, after trimming to `n_rows`, in graph and source."""
    extents = {"cos": Extent(0, 64, 4 * ROWS * ANGLES), "sin": Extent(0, 64, 4 * ROWS * ANGLES)}
    weights = {
        name: StoredWeight(name, TensorProto.FLOAT, (ROWS, ANGLES), extent)
        for name, extent in extents.items()
    }
    graph = onnx.GraphProto(node=nodes)
    for name in weights:
        graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[ROWS, ANGLES])
    path = Path("model.onnx")
    trimmed_source = trimmed(
        graph, SourceModel(path, onnx.ModelProto(graph=graph), (path,), weights), n_rows
    )
    found = {}
    for tensor in graph.initializer:
        weight = trimmed_source.weights[tensor.name]
        assert weight.shape == tuple(tensor.dims)
        assert weight.extent == Extent(0, 64, 4 * weight.shape[0] * ANGLES)
        found[tensor.name] = weight.shape[0]
    return found


@pytest.mark.parametrize(
    ("kind", "inputs"), [("GroupQueryAttention", FUSED), ("RotaryEmbedding", ROTATION)]
)
def test_rows_beyond_the_context_are_left_out(kind: str, inputs: list[str]) -> None:
    nodes = [helper.make_node(kind, inputs, [f"y{i}"], domain=DOMAIN) for i in range(2)]
    assert rows_left(nodes, 300) == {"cos": 300, "sin": 300}


def test_a_table_that_is_shorter_than_the_context_stays_whole() -> None:
    nodes = [helper.make_node("RotaryEmbedding", ROTATION, ["y"], domain=DOMAIN)]
    assert rows_left(nodes, ROWS + 1) == {"cos": ROWS, "sin": ROWS}
