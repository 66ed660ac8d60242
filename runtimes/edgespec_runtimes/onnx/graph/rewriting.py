"""Rewrites an exported decoder so that it runs on our cache of keys and values.

An export reads the whole past of every row as [rows, heads, tokens, size] and returns it with the
new tokens appended. The rewritten graph reads the cache as it lies, [tokens, heads, size], returns
the new tokens alone, and computes logits for chosen tokens only. One row with a mask of our own
checks a whole tree where the graph takes such a mask; where not, every branch is a row, and the
graph gathers each row's past by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, MASK, POSITIONS, Roles
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, Flow, angle_switch
from edgespec_runtimes.onnx.graph.layers import find_stages

PAST_LENGTH, PAST_ROWS, LOGIT_ROWS = "edgespec.past_length", "edgespec.past_rows", "edgespec.logits"
BIAS = "edgespec.attention_bias"
_BIAS_INPUT, _POSITIONS_INPUT, _TABLES = 10, 9, slice(7, 9)
"""Inputs of GroupQueryAttention."""


@dataclass(frozen=True, slots=True)
class MaskForm:
    """An attention mask that is fed: [1, 1, tokens, past + tokens] of two values."""

    name: str
    kind: int
    """Element type, of TensorProto."""
    seen: float
    unseen: float


def past_name(layer: int, what: str) -> str:
    """Input: keys or values of the cache, [tokens, heads, size]."""
    return f"edgespec.past.{layer}.{what}"


def new_name(layer: int, what: str) -> str:
    """Output: keys or values of the tokens fed, [rows, tokens, heads, size]."""
    return f"edgespec.new.{layer}.{what}"


def rewritten(
    model: onnx.ModelProto, roles: Roles, masks: Sequence[MaskForm], where: str
) -> onnx.ModelProto:
    """The graph on our cache; `masks` are fed instead of computed. Without any: a row a branch."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    flow = Flow(result)
    stages = find_stages(flow, roles, where)
    chosen = f"{stages.head_input}.edgespec"
    nodes: list[NodeProto] = []
    fed = {mask.name for mask in masks}
    for node, stage in zip(flow.nodes, stages.stage_of, strict=True):
        if stage == stages.head:
            renamed = [chosen if name == stages.head_input else name for name in node.input]
            node.input[:] = renamed
        if fed.isdisjoint(node.output):
            nodes.append(node)
        if stages.head_input in node.output:
            nodes += _pick(stages.head_input, chosen)
    if BIAS in fed:
        _attach_bias(nodes)
    if switch := angle_switch(result):
        nodes[:0] = _switch_by_position(switch[0])
    nodes = _with_fitted_tables(nodes)
    before, after = _on_our_cache(flow, roles, one_row=bool(masks))
    logits = next(v.type.tensor_type.elem_type for v in graph.output if v.name == LOGITS)
    names = [(i, what) for i in range(roles.n_layers) for what in ("key", "value")]
    past = [roles.kv_heads, roles.head_size]
    feeds = [
        *(_value(name, TensorProto.INT64, [None, None]) for name in (IDS, MASK, POSITIONS)),
        _value(PAST_LENGTH, TensorProto.INT64, [1]),
        _value(PAST_ROWS, TensorProto.INT64, [None, None]),
        _value(LOGIT_ROWS, TensorProto.INT64, [None]),
        *(_value(mask.name, mask.kind, [1, 1, None, None]) for mask in masks),
        *(_value(past_name(i, what), roles.kv_kind, [None, *past]) for i, what in names),
    ]
    new = (_value(new_name(i, what), roles.kv_kind, [None, None, *past]) for i, what in names)
    _replace(graph.input, feeds)
    _replace(graph.output, [_value(LOGITS, logits, [None, None, roles.n_vocab]), *new])
    _replace(graph.node, [*before, *nodes, *after])
    graph.initializer.extend(_CONSTANTS)
    del graph.value_info[:]
    return pruned(result)


def pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without nodes, inputs and tensors that no output depends on; in place."""
    graph = model.graph
    flow = Flow(model)
    live = [flow.nodes[i] for i in flow.ancestors(value.name for value in graph.output)]
    _replace(graph.node, live)
    read = {name for names in Flow(model).reads for name in names}
    _replace(graph.input, [value for value in graph.input if value.name in read])
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read])
    return model


_ZERO, _ONE, _TWO = "edgespec.zero", "edgespec.one", "edgespec.two"
_END = "edgespec.end"
_CONSTANTS = tuple(
    numpy_helper.from_array(np.array([number], np.int64), name)
    for name, number in ((_ZERO, 0), (_ONE, 1), (_TWO, 2), (_END, np.iinfo(np.int64).max))
)


def _pick(hidden: str, chosen: str) -> list[NodeProto]:
    """Nodes that pick the tokens LOGIT_ROWS of a hidden state [rows, tokens, hidden]: [1, chosen,
    hidden]."""
    flat, picked = f"{chosen}.flat", f"{chosen}.picked"
    return [
        helper.make_node("Flatten", [hidden], [flat], axis=2),
        helper.make_node("Gather", [flat, LOGIT_ROWS], [picked], axis=0),
        helper.make_node("Unsqueeze", [picked, _ZERO], [chosen]),
    ]


def _on_our_cache(
    flow: Flow, roles: Roles, one_row: bool
) -> tuple[list[NodeProto], list[NodeProto]]:
    """Nodes that make an export's past from our cache, and our new entries from its present."""
    before, after = [], []
    for i, (past, present) in enumerate(zip(roles.past, roles.present, strict=True)):
        for what, past_value, present_value in zip(("key", "value"), past, present, strict=True):
            cache, new = past_name(i, what), new_name(i, what)
            if one_row:
                before += [
                    helper.make_node("Transpose", [cache], [f"{cache}.heads"], perm=[1, 0, 2]),
                    helper.make_node("Unsqueeze", [f"{cache}.heads", _ZERO], [past_value]),
                ]
            else:
                rows = f"{cache}.rows"
                before += [
                    helper.make_node("Gather", [cache, PAST_ROWS], [rows], axis=0),
                    helper.make_node("Transpose", [rows], [past_value], perm=[0, 2, 1, 3]),
                ]
            heads = _appended(flow, past_value, present_value)
            if heads is None:
                heads = f"{new}.heads"
                after.append(
                    helper.make_node("Slice", [present_value, PAST_LENGTH, _END, _TWO], [heads])
                )
            after.append(helper.make_node("Transpose", [heads], [new], perm=[0, 2, 1, 3]))
    return before, after


def _appended(flow: Flow, past: str, present: str) -> str | None:
    """The value that the graph itself appends to the past, [rows, heads, tokens, size]; None if
    there is none."""
    made_by = flow.producer.get(present)
    if made_by is None:
        return None
    node = flow.nodes[made_by]
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    if node.op_type != "Concat" or axis not in {2, -2} or len(node.input) != 2:
        return None
    return node.input[1] if node.input[0] == past else None


def _attach_bias(nodes: Iterable[NodeProto]) -> None:
    """Let fused attention add our mask to the scores, and rotate by the positions that are fed."""
    for node in nodes:
        if node.op_type != FUSED_ATTENTION:
            continue
        node.input.extend([""] * (_BIAS_INPUT + 1 - len(node.input)))
        node.input[_BIAS_INPUT] = BIAS
        if any(attribute.name == "do_rotary" and attribute.i for attribute in node.attribute):
            node.input[_POSITIONS_INPUT] = POSITIONS


def _switch_by_position(test: NodeProto) -> list[NodeProto]:
    """Let angles be chosen by the position of the last token: the length of past and new
    tokens together counts other branches, too.
    """
    last, length = "edgespec.last_position", "edgespec.text_length"
    test.input[0] = length
    return [
        helper.make_node("ReduceMax", [POSITIONS], [last], keepdims=0),
        helper.make_node("Add", [last, _ONE], [length]),
    ]


def _with_fitted_tables(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Let tables of angles have exactly one row for each token in use.

    Fused attention wants no fewer, and a tree's nodes lie in the cache beyond the last position
    of a context that is full; such rows are zeros that no token looks up. Once for all layers: they
    share what is made here, which is small, instead of the tables, which are as long as the longest
    context that the model knows.
    """
    fitted: dict[tuple[str, str], list[str]] = {}
    result: list[NodeProto] = []
    for node in nodes:
        if node.op_type == FUSED_ATTENTION and len(node.input) > _TABLES.stop - 1:
            cos, sin = node.input[_TABLES]
            if cos and sin:
                if (cos, sin) not in fitted:
                    fitted[cos, sin] = [f"{name}.fitted" for name in (cos, sin)]
                    result += _fit(cos, sin, fitted[cos, sin])
                node.input[_TABLES] = fitted[cos, sin]
        result.append(node)
    return result


def _fit(cos: str, sin: str, fitted: Sequence[str]) -> list[NodeProto]:
    """Cut both tables, [rows, angles], to the number of past and new tokens, or pad them."""
    shape, used, kept, rows, missing, pads = (
        f"{fitted[0]}.{what}" for what in ("shape", "used", "kept", "rows", "missing", "pads")
    )
    nodes = [
        helper.make_node("Shape", [MASK], [shape]),
        helper.make_node("Gather", [shape, _ONE], [used]),
    ]
    for table, output in zip((cos, sin), (kept, f"{fitted[1]}.kept"), strict=True):
        nodes.append(helper.make_node("Slice", [table, _ZERO, used, _ZERO], [output]))
    nodes += [
        helper.make_node("Shape", [kept], [f"{kept}.shape"]),
        helper.make_node("Gather", [f"{kept}.shape", _ZERO], [rows]),
        helper.make_node("Sub", [used, rows], [missing]),
        helper.make_node("Concat", [_ZERO, _ZERO, missing, _ZERO], [pads], axis=0),
        helper.make_node("Pad", [kept, pads], [fitted[0]]),
        helper.make_node("Pad", [f"{fitted[1]}.kept", pads], [fitted[1]]),
    ]
    return nodes


def _value(name: str, kind: int, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _replace(field: Any, content: Sequence[Any]) -> None:
    """Protobuf's repeated fields know no assignment."""
    kept = [type(item).FromString(item.SerializeToString()) for item in content]
    del field[:]
    field.extend(kept)
