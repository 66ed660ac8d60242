"""Rewrites an exported decoder to use our KV cache.

An export reads the whole past of every row as [rows, heads, tokens, size] and returns it with the
new tokens appended. The rewritten graph reads the cache in its own layout, [tokens, heads, size],
returns only the new tokens, and computes logits only for selected tokens. Fused attention appends
to the cache by itself, which is then a buffer [1, heads, tokens, size], fed as past and as present.
If the graph accepts an attention mask, a whole tree is verified at once; otherwise every branch is
by itself, and the graph gathers its past.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, MASK, POSITIONS, Roles
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, Flow, angle_switch, reads
from edgespec_runtimes.onnx.graph.functions import replace_content, whole_numbers
from edgespec_runtimes.onnx.graph.layers import find_stages

PAST_LENGTH, PAST_ROWS, LOGIT_ROWS = "edgespec.past_length", "edgespec.past_rows", "edgespec.logits"
BIAS = "edgespec.attention_bias"
_BIAS_INPUT, _POSITIONS_INPUT, _PAST, _TABLES = 10, 9, slice(3, 5), slice(7, 9)
"""Indices of inputs of GroupQueryAttention."""
_PRESENT = slice(1, 3)
"""Indices of its outputs."""


@dataclass(frozen=True, slots=True)
class MaskForm:
    """An attention mask input, [1, 1, tokens, past + tokens], with two values."""

    name: str
    kind: int
    """Element type, a value of TensorProto."""
    seen: float
    unseen: float


def past_name(layer: int, what: str) -> str:
    """Name of the input with keys or values of the cache, [tokens, heads, size], or a buffer."""
    return f"edgespec.past.{layer}.{what}"


def new_name(layer: int, what: str) -> str:
    """Name of the output with keys or values of new tokens, [rows, tokens, heads, size], or the
    buffer with them."""
    return f"edgespec.new.{layer}.{what}"


def appends_in_place(model: onnx.ModelProto, roles: Roles) -> bool:
    """True if every layer's past is only read by fused attention, which returns it as present.

    The past may then be a buffer in which attention writes the new tokens, like onnxruntime-genai's
    `past_present_share_buffer`.
    """
    flow = Flow(model)
    for past, present in zip(roles.past, roles.present, strict=True):
        users = {i for name in past for i in flow.consumers.get(name, ())}
        nodes = [flow.nodes[i] for i in users]
        if len(nodes) != 1 or nodes[0].op_type != FUSED_ATTENTION:
            return False
        if (*nodes[0].input[_PAST],) != past or (*nodes[0].output[_PRESENT],) != present:
            return False
        if sum((*reads(nodes[0]),).count(name) for name in past) != len(past):
            return False
        if any(name in flow.consumers for name in present):
            return False
    return True


def rewritten(
    model: onnx.ModelProto,
    roles: Roles,
    masks: Sequence[MaskForm],
    where: str,
    buffer_tokens: int = 0,
) -> onnx.ModelProto:
    """The graph on our cache with inputs for `masks`; without masks, every branch is by itself.

    With `buffer_tokens`, attention appends to buffers of so many tokens.
    """
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
    after: list[NodeProto] = []
    if buffer_tokens:
        before = _on_buffers(nodes, roles)
    else:
        before, after = _on_our_cache(flow, roles, one_row=bool(masks))
    logits = next(v.type.tensor_type.elem_type for v in graph.output if v.name == LOGITS)
    names = [(i, what) for i in range(roles.n_layers) for what in ("key", "value")]
    past: list[int | None] = [None, roles.kv_heads, roles.head_size]
    appended = [None, *past]
    if buffer_tokens:
        past = appended = [1, roles.kv_heads, buffer_tokens, roles.head_size]
    feeds = [
        *(_value(name, TensorProto.INT64, [None, None]) for name in (IDS, MASK, POSITIONS)),
        _value(PAST_LENGTH, TensorProto.INT64, [1]),
        _value(PAST_ROWS, TensorProto.INT64, [None, None]),
        _value(LOGIT_ROWS, TensorProto.INT64, [None]),
        *(_value(mask.name, mask.kind, [1, 1, None, None]) for mask in masks),
        *(_value(past_name(i, what), roles.kv_kind, past) for i, what in names),
    ]
    new = (_value(new_name(i, what), roles.kv_kind, appended) for i, what in names)
    replace_content(graph.input, feeds)
    replace_content(graph.output, [_value(LOGITS, logits, [None, None, roles.n_vocab]), *new])
    replace_content(graph.node, [*before, *nodes, *after])
    graph.initializer.extend(_CONSTANTS)
    del graph.value_info[:]
    return pruned(result)


def compacted(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that takes what its content needs: protobuf keeps the memory of removed parts as long
    as any part of a model."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    return copy


def pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove, in place, nodes, inputs and tensors that no output depends on."""
    graph = model.graph
    flow = Flow(model)
    live = set(flow.ancestors(value.name for value in graph.output))
    _keep(graph.node, [i in live for i in range(len(flow.nodes))])
    read = {name for i in live for name in flow.reads[i]}
    for field in (graph.input, graph.initializer):
        _keep(field, [item.name in read for item in field])
    return model


_ZERO, _ONE, _TWO = "edgespec.zero", "edgespec.one", "edgespec.two"
_END = "edgespec.end"
_CONSTANTS = tuple(
    numpy_helper.from_array(np.array([number], np.int64), name)
    for name, number in ((_ZERO, 0), (_ONE, 1), (_TWO, 2), (_END, np.iinfo(np.int64).max))
)


def _pick(hidden: str, chosen: str) -> list[NodeProto]:
    """Nodes that select the tokens LOGIT_ROWS of a hidden state [rows, tokens, hidden].

    Their result is [1, selected, hidden].
    """
    flat, picked = f"{chosen}.flat", f"{chosen}.picked"
    return [
        helper.make_node("Flatten", [hidden], [flat], axis=2),
        helper.make_node("Gather", [flat, LOGIT_ROWS], [picked], axis=0),
        helper.make_node("Unsqueeze", [picked, _ZERO], [chosen]),
    ]


def _on_buffers(nodes: Iterable[NodeProto], roles: Roles) -> list[NodeProto]:
    """Let attention return our buffers; returns nodes that feed them to it.

    onnxruntime removes these nodes, so that attention gets the buffers themselves.
    """
    before, returned = [], {}
    for i, (past, present) in enumerate(zip(roles.past, roles.present, strict=True)):
        for what, fed, result in zip(("key", "value"), past, present, strict=True):
            before.append(helper.make_node("Identity", [past_name(i, what)], [fed]))
            returned[result] = new_name(i, what)
    for node in nodes:
        if node.op_type == FUSED_ATTENTION:
            node.output[:] = [returned.get(name, name) for name in node.output]
    return before


def _on_our_cache(
    flow: Flow, roles: Roles, one_row: bool
) -> tuple[list[NodeProto], list[NodeProto]]:
    """Nodes that convert our cache to an export's past, and its present to our new entries."""
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
            heads = appended_value(flow, past_value, present_value)
            if heads is None:
                heads = f"{new}.heads"
                after.append(
                    helper.make_node("Slice", [present_value, PAST_LENGTH, _END, _TWO], [heads])
                )
            after.append(helper.make_node("Transpose", [heads], [new], perm=[0, 2, 1, 3]))
    return before, after


def appended_value(flow: Flow, past: str, present: str) -> str | None:
    """The value that the graph appends to the past, [rows, heads, tokens, size]; else None."""
    made_by = flow.producer.get(present)
    if made_by is None:
        return None
    node = flow.nodes[made_by]
    axis = whole_numbers(node).get("axis")
    if node.op_type != "Concat" or axis not in {2, -2} or len(node.input) != 2:
        return None
    return node.input[1] if node.input[0] == past else None


def _attach_bias(nodes: Iterable[NodeProto]) -> None:
    """Let fused attention add our mask to its scores, and rotate by the given positions."""
    for node in nodes:
        if node.op_type != FUSED_ATTENTION:
            continue
        node.input.extend([""] * (_BIAS_INPUT + 1 - len(node.input)))
        node.input[_BIAS_INPUT] = BIAS
        if whole_numbers(node).get("do_rotary"):
            node.input[_POSITIONS_INPUT] = POSITIONS


def _switch_by_position(test: NodeProto) -> list[NodeProto]:
    """Choose angles by the position of the last token instead of the number of tokens, which
    includes those of other branches.
    """
    last, length = "edgespec.last_position", "edgespec.text_length"
    test.input[0] = length
    return [
        helper.make_node("ReduceMax", [POSITIONS], [last], keepdims=0),
        helper.make_node("Add", [last, _ONE], [length]),
    ]


def _with_fitted_tables(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Give tables of angles exactly one row per slot in use, by cutting or padding them.

    Fused attention requires no fewer, and with a full context, tree nodes are in slots beyond the
    last position; the additional rows are zeros that no token looks up. All layers share the fitted
    tables, which are shorter than those for the model's longest context.
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
    """Cut or pad both tables, [rows, angles], to the number of past and new tokens."""
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


def _keep(field: Any, are_kept: Sequence[bool]) -> None:
    """Delete the other items of a repeated field, without copying those that stay."""
    for i in range(len(are_kept) - 1, -1, -1):
        if not are_kept[i]:
            del field[i]
