"""Rewrites embedding lookups of exporters so that no table is read or copied completely.

A table may consist of blocks of quantised weights, or be transposed because the output head shares
it. Knows single nodes; `flow.py` decides which lookups use the decoder's ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS
from edgespec_runtimes.onnx.graph.functions import replace_content, whole_numbers

BLOCKS = "GatherBlockQuantized"
_TURNED = [1, 2, 0]
"""Permutation from [hidden, batch, tokens] to [batch, tokens, hidden]."""
_ZERO, _ONE = "edgespec.first", "edgespec.step"
_COUNT = tuple(
    numpy_helper.from_array(np.array(number, np.int64), name)
    for name, number in ((_ZERO, 0), (_ONE, 1))
)


def looks_up(node: NodeProto) -> bool:
    """True if a node gathers by token ids."""
    return node.op_type in {"Gather", BLOCKS} and node.input[1:2] == [IDS]


def is_by_row(node: NodeProto) -> bool:
    """True if a lookup returns rows of its table unchanged."""
    return node.op_type == "Gather" and whole_numbers(node).get("axis", 0) == 0


def embedding_by_column(node: NodeProto, users: Sequence[NodeProto]) -> str | None:
    """Name of the embeddings from a lookup by column; None if the node is no such lookup."""
    if node.op_type != "Gather" or whole_numbers(node).get("axis") != 1 or len(users) != 1:
        return None
    turned = users[0]
    orders = [list(attribute.ints) for attribute in turned.attribute]
    return turned.output[0] if turned.op_type == "Transpose" and orders == [_TURNED] else None


def with_columns_gathered(graph: onnx.GraphProto) -> None:
    """Change lookups in a transposed matrix, in place, to gather its columns.

    Otherwise onnxruntime would transpose the table while loading and keep both.
    """
    tensors = {tensor.name for tensor in graph.initializer}
    transposed = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose"
        and node.input[0] in tensors
        and [list(attribute.ints) for attribute in node.attribute] in ([], [[1, 0]])
    }
    nodes = []
    for node in graph.node:
        if looks_up(node) and is_by_row(node) and node.input[0] in transposed:
            columns, name = f"{node.output[0]}.columns", transposed[node.input[0]]
            nodes += [
                helper.make_node("Gather", [name, IDS], [columns], axis=1),
                helper.make_node("Transpose", [columns], node.output, perm=_TURNED),
            ]
        else:
            nodes.append(node)
    if len(nodes) > len(graph.node):
        replace_content(graph.node, nodes)


def with_blocks_by_row(model: onnx.ModelProto) -> onnx.ModelProto:
    """Change lookups of quantised weights to gather the rows of all their tables first.

    The rows of a batch then form a small table, whose rows are dequantised in order.
    """
    reshaped = {
        node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Reshape"
    }
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    result = deepcopy(model)
    del result.graph.node[:]
    for node in model.graph.node:
        if node.op_type == BLOCKS and looks_up(node):
            tables = [reshaped.get(node.input[0], node.input[0]), *node.input[2:]]
            takes_rows = _have_rows(node, [tensors.get(name) for name in tables if name])
            result.graph.node.extend(_by_row(node, tables) if takes_rows else [node])
        else:
            result.graph.node.append(node)
    if len(result.graph.node) > len(model.graph.node):
        result.graph.initializer.extend(_COUNT)
    return result


def with_rows_fed(model: onnx.ModelProto, kinds: Mapping[str, int]) -> onnx.ModelProto:
    """The model with the embeddings in `kinds`, by name with their type, as inputs.

    Their tables are then read by row outside the graph, and onnxruntime keeps no page of them.
    """
    result = deepcopy(model)
    graph = result.graph
    kept = [node for node in graph.node if kinds.keys().isdisjoint(node.output)]
    replace_content(graph.node, kept)
    inputs = (helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items())
    graph.input.extend(inputs)
    return result


def _have_rows(node: NodeProto, tables: list[TensorProto | None]) -> bool:
    """True if all tables of a lookup have one row of whole bytes per token."""
    found = [table for table in tables if table is not None]
    return (
        len(found) == len(tables)
        and whole_numbers(node).get("gather_axis", 0) == 0
        and found[0].data_type == TensorProto.UINT8
        and all(table.dims[:1] == found[0].dims[:1] != [] for table in found)
    )


def _by_row(node: NodeProto, tables: list[str]) -> list[NodeProto]:
    output = node.output[0]
    nodes, flat = [], []
    for i, table in enumerate(tables):
        if not table:
            flat.append("")
            continue
        rows = f"{output}.rows.{i}"
        flat.append(f"{rows}.flat")
        nodes += [
            helper.make_node("Gather", [table, IDS], [rows], axis=0),
            helper.make_node("Flatten", [rows], [flat[-1]], axis=2),
        ]
    count, order, shape, places = (f"{output}.{what}" for what in ("count", "order", "shape", "at"))
    unpacked = deepcopy(node)
    unpacked.input[:] = [flat[0], places, *flat[1:]]
    return [
        *nodes,
        helper.make_node("Size", [IDS], [count]),
        helper.make_node("Range", [_ZERO, count, _ONE], [order]),
        helper.make_node("Shape", [IDS], [shape]),
        helper.make_node("Reshape", [order, shape], [places]),
        unpacked,
    ]
