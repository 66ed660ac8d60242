"""Finds the attention masks of a graph that can be replaced by inputs.

The values computed from `attention_mask` and read by the layers are evaluated on examples, without
weights. If they are a causal mask of two values over the whole context, a tree's mask can replace
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgespec.errors import EdgespecError
from edgespec_runtimes.onnx.files.roles import IDS, MASK, POSITIONS, Roles
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, Flow
from edgespec_runtimes.onnx.graph.functions import model_of, whole_numbers
from edgespec_runtimes.onnx.graph.layers import find_stages
from edgespec_runtimes.onnx.graph.rewriting import BIAS, MaskForm
from edgespec_runtimes.onnx.ort.devices import CPU
from edgespec_runtimes.onnx.ort.sessions import OrtSession, StopFlag, value

HIDDEN_SCORE: dict[int, float] = {TensorProto.FLOAT: -3.4e38, TensorProto.FLOAT16: -65504.0}
"""Bias of a score, by type, that makes it zero after the softmax."""


def find_masks(
    model: onnx.ModelProto, roles: Roles, n_ctx: int, where: str
) -> tuple[MaskForm, ...]:
    """The masks that can be inputs; empty if a tree needs a row per branch.

    `n_ctx` is the longest context in use; a shorter sliding window would hide old tokens.
    """
    flow = Flow(model)
    fused = [node for node in flow.nodes if node.op_type == FUSED_ATTENTION]
    if fused:
        return _bias(flow, fused, roles, n_ctx)
    stages = find_stages(flow, roles, where)
    from_mask = flow.descendants([MASK])
    names = [
        name
        for i in sorted(from_mask)
        if stages.stage_of[i] == 0
        for name in flow.nodes[i].output
        if any(stages.stage_of[user] != 0 for user in flow.consumers.get(name, ()))
    ]
    if not names or not (roles.has_mask and roles.has_positions):
        return ()
    # some exports create masks for several tokens only without a past
    for examples in (((3, 4), (n_ctx - 2, 2)), ((0, 4), (n_ctx - 1, 1))):
        try:
            computed = zip(*_computed(flow, roles, names, examples, where), strict=True)
        except EdgespecError:  # it needs weights, or other inputs
            continue
        forms = [_form(*masks, examples) for masks in zip(names, computed, strict=True)]
        return tuple(form for form in forms if form) if all(forms) else ()
    return ()


def causal(n_past: int, n_new: int) -> np.ndarray:
    """A causal attention mask, bool [new, past + new]."""
    return np.tri(n_new, n_past + n_new, n_past, dtype=np.bool_)


def _form(
    name: str, masks: Sequence[np.ndarray], examples: Sequence[tuple[int, int]]
) -> MaskForm | None:
    """The form of a mask that is causal with two values in all examples of (past, new) tokens."""
    first = masks[0]
    if any(mask.ndim != 4 for mask in masks):
        return None
    seen, unseen = first[0, 0, 0, 0], first[0, 0, 0, -1]
    for mask, (n_past, n_new) in zip(masks, examples, strict=True):
        expected = np.where(causal(n_past, n_new), seen, unseen)
        # one mask for all heads, or equal masks
        if mask.shape != (1, mask.shape[1], *expected.shape) or not (mask == expected).all():
            return None
    if seen == unseen:
        return None
    return MaskForm(name, helper.np_dtype_to_tensor_dtype(first.dtype), float(seen), float(unseen))


def _bias(
    flow: Flow, fused: Sequence[onnx.NodeProto], roles: Roles, n_ctx: int
) -> tuple[MaskForm, ...]:
    """The bias of fused attention as a mask input; empty if it is not possible."""
    for node in fused:
        attributes = whole_numbers(node)
        has_bias = len(node.input) > 10 and node.input[10]
        if has_bias or 0 < attributes.get("local_window_size", -1) < n_ctx:
            return ()
        if not attributes.get("do_rotary") and POSITIONS not in flow.inputs:
            return ()
    return (MaskForm(BIAS, roles.kv_kind, 0.0, HIDDEN_SCORE[roles.kv_kind]),)


def _computed(
    flow: Flow,
    roles: Roles,
    names: Sequence[str],
    examples: Sequence[tuple[int, int]],
    where: str,
) -> list[list[np.ndarray]]:
    """Compute the values `names` for each example of (past, new) tokens."""
    tables = {flow.nodes[i].output[0]: flow.nodes[i].input[0] for i in flow.lookups()}
    nodes = [flow.nodes[i] for i in flow.ancestors(names, stop=tables)]
    read = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in flow.graph.initializer if tensor.name in read]
    inputs = [found for found in flow.graph.input if found.name in read]
    embeddings = sorted(tables.keys() & read)  # [batch, tokens, any size]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None, None])
        for name in embeddings
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph(nodes, "masks", inputs, outputs, tensors)
    part = model_of(graph, flow.model)
    past = {name for pair in roles.past for name in pair}
    cache_type = helper.tensor_dtype_to_np_dtype(roles.kv_kind)
    computed = []
    with OrtSession(part.SerializeToString(), where, 1, CPU.providers()) as session:
        for n_past, n_new in examples:
            feeds: dict[str, np.ndarray] = {
                IDS: np.zeros((1, n_new), np.int64),
                MASK: np.ones((1, n_past + n_new), np.int64),
                POSITIONS: np.arange(n_past, n_past + n_new)[None],
            }
            cache = np.zeros((1, roles.kv_heads, n_past, roles.head_size), cache_type)
            feeds |= dict.fromkeys(past, cache)
            feeds |= dict.fromkeys(embeddings, np.zeros((1, n_new, 1), np.float32))
            fed = {name: value(feeds[name]) for name in session.inputs}
            results = session.run(fed, dict.fromkeys(names), StopFlag())
            computed.append([results[name].numpy() for name in names])
    return computed
