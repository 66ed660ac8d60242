"""Replaces attention that is written out in standard operators by fused attention.

An export by Optimum joins each layer's past with its new tokens, repeats both for every head and
transposes the keys: it copies the whole cache several times for each token. GroupQueryAttention
computes the same from a buffer, to which it appends. A decoder is changed only if all of its layers
compute exactly this, with the masks that were found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS, MASK, POSITIONS, Roles
from edgespec_runtimes.onnx.graph.accuracy import rounds_to_eight_bits
from edgespec_runtimes.onnx.graph.flow import BATCH_SCALED, FUSED_ATTENTION, Flow
from edgespec_runtimes.onnx.graph.functions import replace_content, whole_numbers
from edgespec_runtimes.onnx.graph.rewriting import (
    MaskForm,
    appended_value,
    appends_in_place,
    pruned,
)
from edgespec_runtimes.onnx.graph.shapes import infer

HEAD_MULTIPLE = 8
"""Divisor of all head sizes that fused attention takes."""
HIDES = -1e4
"""Largest bias of a score that makes it zero after the softmax."""
_DOMAIN = "com.microsoft"
_VIEWS = ("Slice", "Expand", "Cast", "Identity")
_NUMERIC = (
    "Constant",
    "Gather",
    "Slice",
    "Cast",
    "Unsqueeze",
    "Squeeze",
    "Identity",
    "Sqrt",
    "Mul",
    "Div",
)
"""Operators that compute constant factors of scores."""
MAX_DEPTH = 12
"""Most operators between a factor and the constants it is computed from."""
_NEW, _PAST = 2, 3
"""Numbers of tokens with which shapes are inferred."""
_LENGTH, _TOTAL, _AXIS, _LESS = (
    f"edgespec.attention.{what}" for what in ("length", "total", "axis", "less")
)


@dataclass(frozen=True, slots=True)
class _Attention:
    """One layer's attention as it is written out."""

    query: str
    """Queries, [rows, heads, tokens, size], before `scale`."""
    n_heads: int
    new: tuple[str, str]
    """New keys and values, [rows, heads, tokens, size]."""
    scale: float
    softcap: float
    mixed: str
    """Result, [rows, heads, tokens, size]."""


def can_be_fused(model: onnx.ModelProto, roles: Roles, masks: Sequence[MaskForm]) -> bool:
    """True if fused attention may round as the export does: nothing in it is narrower than single
    precision, where a difference in a last bit would grow."""
    operators = {node.op_type for node in model.graph.node}
    narrow = not operators.isdisjoint(BATCH_SCALED) or rounds_to_eight_bits(model.graph)
    fits = roles.kv_kind == TensorProto.FLOAT and not roles.head_size % HEAD_MULTIPLE
    return bool(masks) and fits and not narrow and FUSED_ATTENTION not in operators


def with_fused_attention(
    model: onnx.ModelProto, roles: Roles, masks: Sequence[MaskForm]
) -> onnx.ModelProto | None:
    """A copy with fused attention, which takes a mask as bias instead of `masks`; None if a layer
    computes something else. Shapes of the model must be folded."""
    reader = _AttentionReader(model, roles, masks)
    layers = [reader.layer(i) for i in range(roles.n_layers)]
    found = [layer for layer in layers if layer is not None]
    if len(found) < len(layers):
        return None
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    present = {name for pair in roles.present for name in pair}
    by_result = {layer.mixed: i for i, layer in enumerate(found)}
    nodes = _lengths()
    for node in model.graph.node:
        if len(node.output) == 1 and node.output[0] in by_result:
            i = by_result[node.output[0]]
            nodes += _fused(found[i], i, roles)
        elif present.isdisjoint(node.output):
            nodes.append(node)
    replace_content(graph.node, nodes)
    graph.initializer.extend(_constants(found, roles))
    if all(opset.domain != _DOMAIN for opset in result.opset_import):
        result.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    pruned(result)
    return result if appends_in_place(result, roles) else None


class _AttentionReader:
    """Recognises the parts of attention in a graph."""

    def __init__(self, model: onnx.ModelProto, roles: Roles, masks: Sequence[MaskForm]) -> None:
        self._flow, self._roles = Flow(model), roles
        self._masks = {form.name: form for form in masks}
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._shapes = infer(model, export_shapes(roles, _NEW, _PAST))

    def layer(self, index: int) -> _Attention | None:
        """The attention of a layer if it is nothing else, else None."""
        past_keys, past_values = self._roles.past[index]
        keys, values = self._roles.present[index]
        new_keys = appended_value(self._flow, past_keys, keys)
        new_values = appended_value(self._flow, past_values, values)
        product = self._product_with(values)
        if product is None or new_keys is None or new_values is None:
            return None
        scores = self._scores(product.input[0])
        if scores is None:
            return None
        name, scale = self._scaled(scores)
        softcap = 0.0
        if (tangent := self._maker(name, "Tanh")) is not None:
            softcap = scale  # softcap * tanh(scores / softcap)
            name, scale = self._scaled(tangent.input[0])
            scale *= softcap
        multiplied = self._maker(name, "MatMul")
        if multiplied is None:
            return None
        query, query_scale = self._scaled(multiplied.input[0])
        transposed, key_scale = self._scaled(multiplied.input[1])
        turn = self._maker(transposed, "Transpose")
        if turn is None or _ints(turn, "perm") != [0, 1, 3, 2]:
            return None
        if not self._repeats(turn.input[0], keys):
            return None
        result, shape = self._shape(product.output[0]), self._shape(query)
        if not result or len(result) != 4 or not shape or len(shape) != 4:
            return None
        n_heads, inner = result[1], (_NEW, self._roles.head_size)
        if not n_heads or n_heads % self._roles.kv_heads or shape[1] not in {None, n_heads}:
            return None
        if result[2:] != inner or shape[2:] != inner:
            return None
        total = scale * query_scale * key_scale
        if not 0 < total < math.inf or softcap < 0:
            return None
        return _Attention(query, n_heads, (new_keys, new_values), total, softcap, product.output[0])

    def _product_with(self, values: str) -> NodeProto | None:
        """The only product whose second factor is a layer's values, repeated for all heads."""
        following: list[NodeProto] = []
        names = {values}
        for i in self._flow.following([values]):
            node = self._flow.nodes[i]
            if node.op_type == "MatMul" and node.input[1] in names:
                following.append(node)
            elif node.op_type in {"Unsqueeze", "Expand", "Reshape"} and node.input[0] in names:
                names.update(node.output)
        if len(following) != 1 or not self._repeats(following[0].input[1], values):
            return None
        return following[0]

    def _repeats(self, name: str, cached: str) -> bool:
        """True if a value is the cached one, with every head repeated for a group of queries."""
        if name == cached:
            return True
        reshape = self._maker(name, "Reshape")
        expand = self._maker(reshape.input[0], "Expand") if reshape else None
        unsqueeze = self._maker(expand.input[0], "Unsqueeze") if expand else None
        if unsqueeze is None or unsqueeze.input[0] != cached:
            return False
        n, heads, size = _PAST + _NEW, self._roles.kv_heads, self._roles.head_size
        before, after = self._shape(unsqueeze.output[0]), self._shape(name)
        return (before or ())[1:] == (heads, 1, n, size) and (after or ())[2:] == (n, size)

    def _scores(self, weights: str) -> str | None:
        """The scores before the mask, from the attention weights; None if there is no mask."""
        if (choice := self._maker(weights, "Where")) is not None:
            test = self._maker(choice.input[0], "IsNaN")
            if test is None or test.input[0] != choice.input[2]:
                return None
            if self._number(choice.input[1]) != 0:
                return None
            weights = choice.input[2]
        softmax = self._maker(weights, "Softmax")
        if softmax is None or whole_numbers(softmax).get("axis", -1) not in {-1, 3}:
            return None
        masked = self._maker(softmax.input[0], "Add")
        if masked is None:
            return None
        for scores, bias in (tuple(masked.input), tuple(masked.input[::-1])):
            if self._is_mask(bias):
                return str(scores)
        return None

    def _is_mask(self, name: str) -> bool:
        """True for a bias that is zero where a mask shows a token, and hides others."""
        name = self._unviewed(name)
        if (form := self._masks.get(name)) is not None:
            return form.kind != TensorProto.BOOL and form.seen == 0 and form.unseen <= HIDES
        choice = self._maker(name, "Where")
        if choice is None:
            return False
        form = self._masks.get(self._unviewed(choice.input[0]))
        if form is None or form.kind != TensorProto.BOOL:
            return False
        shown, hidden = (self._number(each) for each in choice.input[1:])
        if not form.seen:
            shown, hidden = hidden, shown
        return shown == 0 and hidden is not None and hidden <= HIDES

    def _unviewed(self, name: str) -> str:
        """The value that `name` is a part or a view of."""
        while name not in self._masks and (node := self._maker(name)) is not None:
            if node.op_type not in _VIEWS:
                break
            name = node.input[0]
        return name

    def _scaled(self, name: str) -> tuple[str, float]:
        """A value without constant factors, and the product of these."""
        factor = 1.0
        while (node := self._maker(name)) is not None and node.op_type in {"Mul", "Div"}:
            numbers = [self._number(each) for each in node.input]
            if numbers[1] is not None:
                name, number = node.input[0], numbers[1]
            elif numbers[0] is not None and node.op_type == "Mul":
                name, number = node.input[1], numbers[0]
            else:
                break
            if number == 0:
                break
            factor = factor * number if node.op_type == "Mul" else factor / number
        return name, factor

    def _number(self, name: str, depth: int = 0) -> float | None:
        """The value of a single constant number, which may depend on known shapes."""
        if name in self._tensors:
            return _single(self._tensors[name])
        node = self._maker(name)
        if node is None or node.op_type not in _NUMERIC or depth == MAX_DEPTH:
            return None
        if node.op_type == "Constant":
            return _single(node.attribute[0].t) if node.attribute[0].name == "value" else None
        if node.op_type in {"Gather", "Slice"}:
            measured = self._maker(node.input[0], "Shape")
            shape = self._shape(measured.input[0]) if measured and not measured.attribute else None
            index = self._number(node.input[1], depth + 1)
            # sizes of heads alone do not depend on the number of tokens
            is_last = shape is not None and index is not None and int(index) in {-1, len(shape) - 1}
            return float(shape[-1]) if shape and is_last and shape[-1] else None
        first = self._number(node.input[0], depth + 1)
        if first is None or node.op_type not in {"Sqrt", "Mul", "Div"}:
            return first
        if node.op_type == "Sqrt":
            return math.sqrt(first) if first >= 0 else None
        second = self._number(node.input[1], depth + 1)
        if node.op_type == "Mul" and second is not None:
            return first * second
        return first / second if second else None

    def _maker(self, name: str, operator: str | None = None) -> NodeProto | None:
        """The node that computes `name`, if it is an `operator`."""
        made_by = self._flow.producer.get(name)
        node = None if made_by is None else self._flow.nodes[made_by]
        return node if node is not None and operator in {None, node.op_type} else None

    def _shape(self, name: str) -> tuple[int | None, ...] | None:
        described = self._shapes.get(name)
        return described.shape if described else None


def export_shapes(roles: Roles, n_new: int, n_past: int) -> dict[str, tuple[int, ...]]:
    """Shapes of an export's inputs for a batch of one row."""
    past = (1, roles.kv_heads, n_past, roles.head_size)
    feeds: dict[str, tuple[int, ...]] = {IDS: (1, n_new), POSITIONS: (1, n_new)}
    feeds[MASK] = (1, n_past + n_new)
    return feeds | {name: past for pair in roles.past for name in pair}


def _lengths() -> list[NodeProto]:
    """Nodes that count the tokens: those of the text less one, and all, as fused attention
    expects them."""
    shape, count, last = (f"{_TOTAL}.{what}" for what in ("shape", "count", "last"))
    return [
        helper.make_node("Shape", [MASK], [shape]),
        helper.make_node("Gather", [shape, _AXIS], [count]),
        helper.make_node("Cast", [count], [_TOTAL], to=TensorProto.INT32),
        helper.make_node("Sub", [count, _LESS], [last]),
        helper.make_node("Cast", [last], [_LENGTH], to=TensorProto.INT32),
    ]


def _fused(layer: _Attention, index: int, roles: Roles) -> list[NodeProto]:
    """Fused attention between values of the shapes that the rest of the graph has."""
    nodes, flat = [], []
    for what, name in zip(("query", "key", "value"), (layer.query, *layer.new), strict=True):
        turned, joined = (f"edgespec.attention.{index}.{what}{end}" for end in (".turned", ""))
        shape = _width(layer.n_heads if what == "query" else roles.kv_heads, roles.head_size)
        nodes += [
            helper.make_node("Transpose", [name], [turned], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [turned, shape], [joined]),
        ]
        flat.append(joined)
    result, split = (f"edgespec.attention.{index}.{what}" for what in ("result", "split"))
    attributes: dict[str, Any] = {"softcap": layer.softcap} if layer.softcap else {}
    nodes.append(
        helper.make_node(
            FUSED_ATTENTION,
            [*flat, *roles.past[index], _LENGTH, _TOTAL],
            [result, *roles.present[index]],
            name=f"edgespec.attention.{index}",
            domain=_DOMAIN,
            num_heads=layer.n_heads,
            kv_num_heads=roles.kv_heads,
            scale=layer.scale,
            **attributes,
        )
    )
    heads = _heads(layer.n_heads, roles.head_size)
    return [
        *nodes,
        helper.make_node("Reshape", [result, heads], [split]),
        helper.make_node("Transpose", [split], [layer.mixed], perm=[0, 2, 1, 3]),
    ]


def _width(n_heads: int, size: int) -> str:
    return f"edgespec.attention.width.{n_heads * size}"


def _heads(n_heads: int, size: int) -> str:
    return f"edgespec.attention.heads.{n_heads}.{size}"


def _constants(layers: Sequence[_Attention], roles: Roles) -> list[TensorProto]:
    numbers: dict[str, Sequence[int]] = {_AXIS: [1], _LESS: [1]}
    size = roles.head_size
    for n_heads in {layer.n_heads for layer in layers} | {roles.kv_heads}:
        numbers[_width(n_heads, size)] = [0, 0, n_heads * size]
        numbers[_heads(n_heads, size)] = [0, 0, n_heads, size]
    return [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items()]


def _single(tensor: TensorProto) -> float | None:
    """The number of a tensor of one that lies in the graph, else None."""
    if math.prod(tensor.dims) != 1 or tensor.data_location == TensorProto.EXTERNAL:
        return None
    return float(numpy_helper.to_array(tensor).reshape(-1)[0])


def _ints(node: NodeProto, name: str) -> list[int]:
    return next((list(item.ints) for item in node.attribute if item.name == name), [])
