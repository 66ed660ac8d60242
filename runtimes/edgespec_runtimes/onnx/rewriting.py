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

from edgespec_runtimes.onnx.graph import FUSED_ATTENTION, Flow
from edgespec_runtimes.onnx.layers import find_stages
from edgespec_runtimes.onnx.roles import IDS, LOGITS, MASK, POSITIONS, Roles

PAST_LENGTH, PAST_ROWS, LOGIT_ROWS = "edgespec.past_length", "edgespec.past_rows", "edgespec.logits"
BIAS = "edgespec.attention_bias"
_BIAS_INPUT, _POSITIONS_INPUT = 10, 9
"""Of GroupQueryAttention."""


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
            _rename(node.input, stages.head_input, chosen)
        if fed.isdisjoint(node.output):
            nodes.append(node)
        if stages.head_input in node.output:
            nodes += _pick(stages.head_input, chosen)
    if BIAS in fed:
        _attach_bias(nodes)
    before, after = _on_our_cache(roles, one_row=bool(masks))
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


_ZERO, _TWO, _END = "edgespec.zero", "edgespec.two", "edgespec.end"
_CONSTANTS = tuple(
    numpy_helper.from_array(np.array([number], np.int64), name)
    for name, number in ((_ZERO, 0), (_TWO, 2), (_END, np.iinfo(np.int64).max))
)


def _pick(hidden: str, chosen: str) -> list[NodeProto]:
    """Of a hidden state [rows, tokens, hidden] the tokens LOGIT_ROWS: [1, chosen, hidden]."""
    flat, picked = f"{chosen}.flat", f"{chosen}.picked"
    return [
        helper.make_node("Flatten", [hidden], [flat], axis=2),
        helper.make_node("Gather", [flat, LOGIT_ROWS], [picked], axis=0),
        helper.make_node("Unsqueeze", [picked, _ZERO], [chosen]),
    ]


def _on_our_cache(roles: Roles, one_row: bool) -> tuple[list[NodeProto], list[NodeProto]]:
    """What makes an export's past from our cache, and our new entries from its present."""
    before, after = [], []
    for i, (past, present) in enumerate(zip(roles.past, roles.present, strict=True)):
        for what, old, made in zip(("key", "value"), past, present, strict=True):
            cache, new = past_name(i, what), new_name(i, what)
            if one_row:
                before += [
                    helper.make_node("Transpose", [cache], [f"{cache}.heads"], perm=[1, 0, 2]),
                    helper.make_node("Unsqueeze", [f"{cache}.heads", _ZERO], [old]),
                ]
            else:
                rows = f"{cache}.rows"
                before += [
                    helper.make_node("Gather", [cache, PAST_ROWS], [rows], axis=0),
                    helper.make_node("Transpose", [rows], [old], perm=[0, 2, 1, 3]),
                ]
            after += [
                helper.make_node("Slice", [made, PAST_LENGTH, _END, _TWO], [f"{new}.heads"]),
                helper.make_node("Transpose", [f"{new}.heads"], [new], perm=[0, 2, 1, 3]),
            ]
    return before, after


def _attach_bias(nodes: Iterable[NodeProto]) -> None:
    """Let fused attention add our mask to the scores, and rotate by the positions that are fed."""
    for node in nodes:
        if node.op_type != FUSED_ATTENTION:
            continue
        node.input.extend([""] * (_BIAS_INPUT + 1 - len(node.input)))
        node.input[_BIAS_INPUT] = BIAS
        if any(attribute.name == "do_rotary" and attribute.i for attribute in node.attribute):
            node.input[_POSITIONS_INPUT] = POSITIONS


def _value(name: str, kind: int, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _rename(names: Any, old: str, new: str) -> None:
    for i, name in enumerate(names):
        if name == old:
            names[i] = new


def _replace(field: Any, content: Sequence[Any]) -> None:
    """Protobuf's repeated fields know no assignment."""
    kept = [type(item).FromString(item.SerializeToString()) for item in content]
    del field[:]
    field.extend(kept)
