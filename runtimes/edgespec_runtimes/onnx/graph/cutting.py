"""Cuts a rewritten decoder into pieces: the part before the layers, each layer, and the head.

Weights become inputs, and pieces of equal structure share a graph. `layers.py` finds the layers.
Knows nothing of files, memory or onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.graph.flow import Flow, reads
from edgespec_runtimes.onnx.graph.functions import model_of, nested
from edgespec_runtimes.onnx.graph.layers import find_stages
from edgespec_runtimes.onnx.graph.lookups import embedding_by_column, is_by_row, with_blocks_by_row
from edgespec_runtimes.onnx.graph.shapes import infer

ALWAYS = "edgespec.always"
"""Name of an input that is always true; onnxruntime would fold a constant."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a decoder. Pairs are (name in the piece's graph, name in the decoder)."""

    name: str
    stage: int
    graph: int
    """Index of the graph that computes the piece."""
    inputs: tuple[tuple[str, str], ...]
    weights: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A decoder's pieces, in order of execution, and the graphs that they share."""

    graphs: tuple[bytes, ...]
    pieces: tuple[Piece, ...]
    embeddings: tuple[tuple[str, str], ...]
    """Values that are looked up by token instead of computed, and their tables."""
    columns: tuple[tuple[str, str], ...] = ()
    """Values that are looked up by column in tables [hidden, tokens], and these tables."""
    scales: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Scales and zero points of int8 weights that are inputs, by name in the decoder: as constants
    they would give each layer a graph of its own."""


def cut(
    model: onnx.ModelProto,
    roles: Roles,
    weights: Mapping[str, tuple[int, ...]],
    where: str,
    by_piece: bool = True,
) -> Cut:
    """Cut a rewritten decoder; `weights` has the shapes of weights, which become inputs.

    `by_piece`: a CPU runs each piece in a session of its graph. Half precision is converted one
    weight at a time then, and scales of int8 weights become inputs.
    """
    cutter = _Cutter(with_blocks_by_row(model), roles, weights, where, by_piece)
    graphs: dict[bytes, int] = {}
    pieces = [
        cutter.piece(stage, outputs, graphs)
        for stage in range(cutter.head + 1)
        if (outputs := cutter.outputs(stage))
    ]
    return Cut(
        tuple(graphs),
        tuple(pieces),
        tuple(cutter.embeddings.items()),
        tuple(cutter.columns.items()),
        cutter.scales,
    )


def _looked_up(
    flow: Flow, weights: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Embeddings and their tables, separately for tables by row and by column."""
    by_row, by_column = {}, {}
    for i in flow.lookups():
        node = flow.nodes[i]
        embedding, table = node.output[0], node.input[0]
        users = [flow.nodes[user] for user in flow.consumers.get(embedding, ())]
        n_dims = len(weights.get(table, ()))
        if is_by_row(node) and n_dims > 1:
            by_row[embedding] = table
        elif n_dims == 2 and (turned := embedding_by_column(node, users)):
            by_column[turned] = table
    return by_row, by_column


class _Cutter:
    def __init__(
        self,
        model: onnx.ModelProto,
        roles: Roles,
        weights: Mapping[str, tuple[int, ...]],
        where: str,
        by_piece: bool,
    ) -> None:
        self._where = where
        self._by_piece = by_piece
        self._flow = flow = Flow(model)
        stages = find_stages(flow, roles, where)
        self._stage_of, self.head = stages.stage_of, stages.head
        self._known, self._weights = infer(model), weights
        self.embeddings, self.columns = _looked_up(flow, weights)
        self._fed = flow.inputs.union(self.embeddings, self.columns)
        self._tensors = {tensor.name: tensor for tensor in flow.graph.initializer}
        small = self._tensors.keys() - weights.keys()
        scales = _weight_scales(flow) & small if by_piece else set()
        self.scales = {name: numpy_helper.to_array(self._tensors[name]) for name in scales}

    def outputs(self, stage: int) -> list[str]:
        """Values of a stage that later ones read, or that the decoder returns."""
        found = []
        for i, node in enumerate(self._flow.nodes):
            if self._stage_of[i] != stage:
                continue
            for name in node.output:
                users = {self._stage_of[user] for user in self._flow.consumers.get(name, ())}
                if name in self._fed:
                    continue
                if name in self._flow.outputs or users - {stage, None}:
                    found.append(name)
        return found

    def piece(self, stage: int, outputs: Sequence[str], graphs: dict[bytes, int]) -> Piece:
        """The part of the graph that computes `outputs`; equal pieces get equal names."""
        nodes, incoming = self._nodes(stage, outputs)
        if self._by_piece:
            nodes = self._one_at_a_time(nodes, incoming)
        names: dict[str, str] = {}
        inputs, weights, tensors = [], [], []
        for value in incoming:
            short = f"v{len(names)}"
            if value in self._weights:
                weights.append((short, value))
            elif value in self._tensors and value not in self.scales:
                tensor = deepcopy(self._tensors[value])
                tensor.name = short
                tensors.append(tensor)
            else:
                inputs.append((short, value))
            names[value] = short
        for node in nodes:
            for value in node.output:
                if value:
                    names[value] = f"v{len(names)}"
        graph = helper.make_graph(
            [_renamed(node, names) for node in nodes],
            "piece",
            [self._declared(short, value) for short, value in (*inputs, *weights)],
            [self._declared(names[value], value) for value in outputs],
            tensors,
        )
        content = model_of(graph, self._flow.model).SerializeToString(deterministic=True)
        index = graphs.setdefault(content, len(graphs))
        name = "prelude" if stage == 0 else "head" if stage == self.head else f"layer {stage - 1}"
        renamed_outputs = tuple((names[value], value) for value in outputs)
        return Piece(name, stage, index, tuple(inputs), tuple(weights), renamed_outputs)

    def _nodes(self, stage: int, outputs: Sequence[str]) -> tuple[list[NodeProto], list[str]]:
        """Nodes that compute `outputs`, inputs first, and the values that they read from outside.

        The order depends only on the structure, so that equal layers have equal graphs.
        """
        flow = self._flow
        nodes: list[NodeProto] = []
        incoming: dict[str, None] = {}
        done: set[int] = set()
        pending: list[tuple[int, bool]] = []

        def visit(value: str) -> None:
            i = flow.producer.get(value)
            if i is None or value in self._fed or self._stage_of[i] not in {stage, None}:
                incoming[value] = None
            elif i not in done:
                pending.append((i, False))

        for output in outputs:
            visit(output)
            while pending:
                i, is_ready = pending.pop()
                if i in done:
                    continue
                if is_ready:
                    done.add(i)
                    nodes.append(flow.nodes[i])
                    continue
                pending.append((i, True))
                for value in reversed(flow.reads[i]):
                    visit(value)
        return nodes, list(incoming)

    def _one_at_a_time(self, nodes: Sequence[NodeProto], incoming: list[str]) -> list[NodeProto]:
        """Make onnxruntime convert each half-precision weight just before its product.

        CPUs compute in single precision. onnxruntime converts all weights at the beginning of a
        run, except those in the branch of an If, which it evaluates when it gets there.
        """
        users = Counter(name for node in nodes for name in reads(node))
        maker_of = {node.output[0]: node for node in nodes if len(node.output) == 1}
        result: list[NodeProto] = []
        moved: set[str] = set()
        for node in nodes:
            if node.op_type not in {"MatMul", "Gemm"} or len(node.input) < 2:
                result.append(node)
                continue
            weight, branch = node.input[1], [node]
            before = maker_of.get(weight)
            if before is not None and before.op_type == "Transpose" and users[weight] == 1:
                weight, branch = before.input[0], [before, node]
            if weight not in self._weights or self._known[weight].kind != TensorProto.FLOAT16:
                result.append(node)
                continue
            moved.update(inner.output[0] for inner in branch[:-1])
            result.append(_as_taken_branch(branch))
        if all(a is b for a, b in zip(result, nodes, strict=True)):
            return result
        incoming.append(ALWAYS)
        return [node for node in result if moved.isdisjoint(node.output)]

    def _declared(self, short: str, value: str) -> onnx.ValueInfoProto:
        if value in self._weights:
            tensor = self._tensors[value]
            return helper.make_tensor_value_info(short, tensor.data_type, list(tensor.dims))
        if value == ALWAYS:
            return helper.make_tensor_value_info(short, TensorProto.BOOL, [])
        if value not in self._known:
            raise ModelError(
                f"{self._where}: the graph does not give the type of {value!r}: export it again"
            )
        # onnxruntime moves factors into products of known shapes alone, and rounds otherwise then
        known = self._known[value]
        return helper.make_tensor_value_info(short, known.kind, known.shape)


def _weight_scales(flow: Flow) -> set[str]:
    """Names of what may be scales and zero points of weights whose activations are quantised as
    they come."""
    found: set[str] = set()
    for node in flow.nodes:
        if node.op_type == "MatMulInteger":
            found.update(node.input[3:])
        elif node.op_type == "DynamicQuantizeMatMul":
            found.update(node.input[2:4])
        elif node.op_type == "DynamicQuantizeLinear":
            users = (flow.nodes[user] for user in flow.consumers.get(node.output[1], ()))
            found.update(name for user in users if user.op_type == "Mul" for name in user.input)
    return found


def _as_taken_branch(nodes: Sequence[NodeProto]) -> NodeProto:
    """A half-precision product as the branch of an If that is always taken."""
    product = nodes[-1]
    output = product.output[0]
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT16, None)
    taken = helper.make_graph(nodes, "product", [], [value])
    never = f"{output}.never"
    other = helper.make_tensor_value_info(never, TensorProto.FLOAT16, None)
    left = helper.make_node("Identity", [product.input[0]], [never])
    not_taken = helper.make_graph([left], "nothing", [], [other])
    return helper.make_node("If", [ALWAYS], [output], then_branch=taken, else_branch=not_taken)


def _renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    """A copy with short names, also in nested graphs."""
    copy = deepcopy(node)
    copy.name = copy.doc_string = ""
    copy.ClearField("metadata_props")
    for graph in nested(copy):
        _rename_nested(graph, dict(names))
    for values in (copy.input, copy.output):
        for i, name in enumerate(values):
            values[i] = names[name] if name else ""
    return copy


def _rename_nested(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename the values of a nested graph, including captured ones."""
    own = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    own += [name for node in graph.node for name in node.output if name]
    for name in dict.fromkeys(own):
        names[name] = f"n{len(names)}"
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = names[named.name]
    del graph.value_info[:]
    for i, node in enumerate(list(graph.node)):
        graph.node[i].CopyFrom(_renamed(node, names))
