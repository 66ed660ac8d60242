"""Recognises a LLaMA in the graph of an export: which weight plays which role, and its constants.

Roles follow from the structure: matrices that read one value stand together, and their order tells
what they are. Names decide nothing. Knows no weights' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import LOGITS, Roles, find_roles
from edgespec_runtimes.onnx.files.source import Source
from edgespec_runtimes.onnx.graph.flow import Flow, simplified
from edgespec_runtimes.onnx.graph.shapes import infer
from edgespec_runtimes.onnx.prepare.masks import find_masks

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
ARCHITECTURES = ("llama", "mistral")
"""Values of `model_type` in config.json whose layers compute what this module expects."""
MOST_CONTEXT = 4096
"""Over which the mask is held against a causal one: a sliding window may be shorter."""

OPERATORS = frozenset(
    (
        *("Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "Cos", "Div", "Equal"),
        *("Expand", "Flatten", "Gather", "GatherND", "Greater", "GreaterOrEqual", "Identity"),
        *("IsNaN", "Less", "LessOrEqual", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow"),
        *("Range", "Reciprocal", "ReduceMean", "Reshape", "ScatterND", "Shape", "Sigmoid", "Sin"),
        *("Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Trilu"),
        *("Unsqueeze", "Where"),
    )
)
"""Operators of exported LLaMAs. Any other does something that is not known here."""
_LAYER_GROUPS = (3, 1, 2, 1)
"""Matrices that read one value: query, key, value; output; gate, up; down."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Names of a layer's tensors. Matrices are [in, out]."""

    attn_norm: str
    query: str
    key: str
    value: str
    output: str
    ffn_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True)
class Llama:
    """An export, recognised."""

    model: onnx.ModelProto
    roles: Roles
    embedding: str
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: str
    head: str | None
    """[hidden, vocabulary]; None where the head is the embedding, transposed."""
    epsilon: float
    frequencies: np.ndarray
    """Frequencies of the rotation, float32 [head size / 2]."""
    residual_kind: int
    """Element type, of TensorProto, in which layers add to the residual stream."""
    logits_kind: int

    @property
    def tensors(self) -> Mapping[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}


def recognise(source: Source) -> Llama:
    """The LLaMA in an export. Raises ModelError for anything else, with the first difference."""
    where = str(source.path)
    architecture = source.config.get("model_type", ARCHITECTURES[0])
    if architecture not in ARCHITECTURES:
        raise ModelError(f"{where} has the architecture {architecture}: only llama can be enlarged")
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    model = simplified(model, where)
    found = _Recogniser(model, source.path)
    roles = find_roles(model.graph, where)
    context = source.config.get("max_position_embeddings", MOST_CONTEXT)
    if not find_masks(model, roles, min(context, MOST_CONTEXT), where):
        raise ModelError(
            f"{where} hides tokens by another mask than a causal one: only causal decoders can be "
            "enlarged"
        )
    return found.llama(roles)


class _Recogniser:
    def __init__(self, model: onnx.ModelProto, path: Path) -> None:
        self._model, self._path = model, path
        self._flow = Flow(model)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        unknown = {node.op_type for node in self._flow.nodes} - OPERATORS
        if unknown:
            raise self._no_llama(f"its graph has {', '.join(sorted(unknown))}")
        self._kinds = {name: value.kind for name, value in infer(model).items()}

    def llama(self, roles: Roles) -> Llama:
        groups = self._groups()
        expected = [*_LAYER_GROUPS * roles.n_layers, 1]
        if [len(group) for group in groups] != expected:
            raise self._no_llama("the matrices of its layers are not seven")
        layers = tuple(
            self._layer(groups[4 * index : 4 * index + 4], *roles.present[index])
            for index in range(roles.n_layers)
        )
        table = self._table()
        norm, epsilon = self._norm(groups[-1][0])
        head = self._head(groups[-1][0], table)
        frequencies, rotating = self._frequencies(roles.head_size // 2)
        named = {name for layer in layers for name in astuple(layer)} | {table, norm}
        self._check_complete(named | rotating | ({head} if head else set()))
        if {epsilon} != {self._norm(group[0])[1] for group in groups[::2]}:
            raise self._no_llama("its norms differ in their epsilon")
        return Llama(
            self._model,
            roles,
            table,
            layers,
            norm,
            head,
            epsilon,
            frequencies,
            self._kinds[self._sum(groups[1][0])],
            self._kinds[LOGITS],
        )

    def _table(self) -> str:
        tables: set[str] = {self._flow.nodes[i].input[0] for i in self._flow.lookups()}
        if len(tables) != 1:
            raise self._no_llama(f"it looks tokens up in {len(tables)} tables")
        return tables.pop()

    def _groups(self) -> list[list[NodeProto]]:
        """Products with matrices of the file, by the value that they read, in order."""
        groups: dict[str, list[NodeProto]] = {}
        for node in self._flow.nodes:
            if node.op_type == "MatMul" and self._matrix(node) is not None:
                groups.setdefault(node.input[0], []).append(node)
        return list(groups.values())

    def _matrix(self, node: NodeProto) -> str | None:
        """The matrix that a product reads, transposed or not."""
        name: str = node.input[1]
        maker = self._maker(name)
        if maker is not None and maker.op_type == "Transpose":
            name = maker.input[0]
        tensor = self._tensors.get(name)
        return name if tensor is not None and len(tensor.dims) == 2 else None

    def _layer(self, groups: list[list[NodeProto]], key: str, value: str) -> LayerWeights:
        readers, (output,), gated, (down,) = groups
        by_output = {node.output[0]: node for node in readers}
        keys = by_output.pop(self._projection(key), None)
        values = by_output.pop(self._projection(value), None)
        gates = [node for node in gated if self._feeds(node, "Sigmoid")]
        if keys is None or values is None or len(gates) != 1:
            raise self._no_llama("its projections are not those of a LLaMA")
        (query,) = by_output.values()
        (up,) = (node for node in gated if node is not gates[0])
        return LayerWeights(
            attn_norm=self._norm(query)[0],
            query=self._as_is(query),
            key=self._as_is(keys),
            value=self._as_is(values),
            output=self._as_is(output),
            ffn_norm=self._norm(up)[0],
            gate=self._as_is(gates[0]),
            up=self._as_is(up),
            down=self._as_is(down),
        )

    def _as_is(self, product: NodeProto) -> str:
        """The matrix of a product that reads it as it is stored, [in, out]."""
        name: str = product.input[1]
        if name not in self._tensors:
            raise self._no_llama(f"{product.name} reads a transposed matrix")
        return name

    def _projection(self, present: str) -> str:
        """The product with a matrix from which keys or values come."""
        found: set[str] = {
            node.output[0]
            for node in self._ancestors(present)
            if node.op_type == "MatMul" and self._matrix(node) is not None
        }
        if len(found) != 1:
            raise self._no_llama(f"{present} is computed from {len(found)} projections")
        return found.pop()

    def _ancestors(self, value: str) -> Iterator[NodeProto]:
        """Nodes that `value` is computed from, back to products with matrices; shapes lead no
        further."""
        pending, seen = [value], set()
        while pending:
            node = self._maker(pending.pop())
            if node is None or node.output[0] in seen:
                continue
            seen.add(node.output[0])
            yield node
            is_product = node.op_type == "MatMul" and self._matrix(node) is not None
            if not is_product and node.op_type != "Shape":
                pending.extend(node.input)

    def _norm(self, product: NodeProto) -> tuple[str, float]:
        """Weight and epsilon of the norm whose result a product reads."""
        scaled = self._maker(product.input[0])
        while scaled is not None and scaled.op_type == "Cast":
            scaled = self._maker(scaled.input[0])
        weights = [name for name in scaled.input if name in self._tensors] if scaled else []
        if scaled is None or scaled.op_type != "Mul" or len(weights) != 1:
            raise self._no_llama(f"{product.name} reads something that is no norm")
        for node in self._ancestors(scaled.output[0]):
            if node.op_type == "Add":
                constants = [self._constant(name) for name in node.input]
                makers = [self._maker(name) for name in node.input]
                for constant, maker in zip(constants, makers[::-1], strict=True):
                    if constant is not None and maker and maker.op_type == "ReduceMean":
                        return weights[0], constant.item()
        raise self._no_llama(f"{product.name} reads another norm than RMSNorm")

    def _head(self, product: NodeProto, table: str) -> str | None:
        matrix = self._matrix(product)
        if matrix == product.input[1]:
            return matrix
        if matrix == table:
            return None
        raise self._no_llama("its head is a transposed matrix of its own")

    def _frequencies(self, n: int) -> tuple[np.ndarray, set[str]]:
        """One angle per position for each pair of elements, and the tensors that say so."""
        found: dict[str, np.ndarray] = {}
        for node in self._flow.nodes:
            if node.op_type == "Cos":
                for name in (
                    name for maker in self._ancestors(node.output[0]) for name in maker.input
                ):
                    constant = self._constant(name)
                    if constant is not None and constant.dtype.kind == "f" and constant.size == n:
                        found[name] = constant.ravel()
                self._check_unscaled(node)
        rows = list(found.values())
        if not rows or any(not np.array_equal(rows[0], row) for row in rows):
            raise self._no_llama("its rotation is not computed from one row of frequencies")
        return rows[0].astype(np.float32), set(found)

    def _check_unscaled(self, cosine: NodeProto) -> None:
        for user in self._users(cosine.output[0]):
            constants = [self._constant(name) for name in user.input]
            if user.op_type == "Mul" and any(c is not None and np.any(c != 1) for c in constants):
                raise self._no_llama("its rotation also scales")

    def _sum(self, product: NodeProto) -> str:
        """The value of the residual stream that a product is added to."""
        value: str = product.output[0]
        for _ in range(2):
            for user in self._users(value):
                value = user.output[0]
                if user.op_type == "Add":
                    return value
        raise self._no_llama(f"{product.name} is not added to the residual stream")

    def _check_complete(self, known: set[str]) -> None:
        """Every weight has a role, so that nothing is left out of the result."""
        for name, tensor in self._tensors.items():
            is_float = tensor.data_type in FLOATS
            if name in known and not is_float:
                kind = TensorProto.DataType.Name(tensor.data_type)
                raise ModelError(
                    f"{self._path} stores {name} as {kind}: only fp32 and fp16 can be enlarged"
                )
            is_weight = is_float and max(tensor.dims, default=1) > 1
            if is_weight and name not in known and name in self._flow.consumers:
                raise self._no_llama(f"{name} {list(tensor.dims)} is no part of one")

    def _constant(self, name: str) -> np.ndarray | None:
        """The value of a small constant tensor."""
        maker = self._maker(name)
        if maker is not None and maker.op_type == "Constant":
            tensors = [a.t for a in maker.attribute if a.name == "value"]
            return numpy_helper.to_array(tensors[0]) if tensors else None
        tensor = self._tensors.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def _feeds(self, node: NodeProto, operator: str) -> bool:
        return any(user.op_type == operator for user in self._users(node.output[0]))

    def _users(self, value: str) -> list[NodeProto]:
        return [self._flow.nodes[i] for i in self._flow.consumers.get(value, ())]

    def _maker(self, value: str) -> NodeProto | None:
        place = self._flow.producer.get(value)
        return None if place is None else self._flow.nodes[place]

    def _no_llama(self, why: str) -> ModelError:
        return ModelError(
            f"{self._path} is no plain LLaMA, which is all that can be enlarged: {why}"
        )
