"""Infers types and shapes of a graph's values, and the memory of its intermediate values.

ONNX's shape inference supports standard operators; others are replaced, in a temporary copy, by
standard ones with the same output types and shapes. Nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, defs, helper, numpy_helper, shape_inference

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import LOGITS
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, Flow

_VIEWS = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Shape", "Size", "Constant")
"""Operators whose outputs take no significant memory."""


_PAST_KEYS = 3
"""Index of an input of GroupQueryAttention."""
MAX_CONSTANT_BYTES = 64 << 20
"""Size that a value of a fixed shape may have besides what it unpacks of the weights."""
UNPACKED = 16
"""Most bytes that a byte of weights is unpacked to: two bits to single precision."""


@dataclass(frozen=True, slots=True)
class Described:
    """A value's element type (a value of TensorProto) and its shape, if known."""

    kind: int
    shape: tuple[int | None, ...] | None

    @property
    def nbytes(self) -> int | None:
        if self.shape is None or None in self.shape:
            return None
        n_elements = math.prod(dim for dim in self.shape if dim is not None)
        return n_elements * helper.tensor_dtype_to_np_dtype(self.kind).itemsize


def infer(
    model: onnx.ModelProto, feeds: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, Described]:
    """Types and shapes of all values; `feeds` has known shapes of inputs.

    Raises ModelError for a graph with contradictory types.
    """
    scratch = onnx.ModelProto()
    scratch.CopyFrom(model)
    graph = scratch.graph
    kinds = {(node.domain, node.op_type) for node in graph.node}
    if not all(_is_standard(*kind) for kind in kinds):
        nodes = [stand_in for node in graph.node for stand_in in _stand_ins(node, graph)]
        del graph.node[:]
        graph.node.extend(nodes)
    for graph_input in graph.input:
        shape = (feeds or {}).get(graph_input.name)
        if shape is not None:
            kind = graph_input.type.tensor_type.elem_type
            graph_input.CopyFrom(helper.make_tensor_value_info(graph_input.name, kind, shape))
    for graph_output in graph.output:
        graph_output.type.tensor_type.ClearField("shape")
    try:
        known = shape_inference.infer_shapes(scratch, data_prop=True).graph
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"the types in the graph contradict each other: {reason}") from error
    found = {t.name: Described(t.data_type, tuple(t.dims)) for t in known.initializer}
    for value in (*known.input, *known.output, *known.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            dims = (d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
            its_shape = tuple(dims) if tensor.HasField("shape") else None
            found[value.name] = Described(tensor.elem_type, its_shape)
    return found


def check_sizes(
    known: Mapping[str, Described], n_vocab: int, weight_bytes: int, where: str
) -> None:
    """Check inferred shapes before onnxruntime computes anything.

    Raises ModelError if the logits are not those that were declared, or if values whose size does
    not depend on the text are far larger than all weights, since onnxruntime computes constants
    while it loads.
    """
    logits = known.get(LOGITS)
    width = logits.shape[-1] if logits and logits.shape else None
    if width not in {None, n_vocab}:
        raise ModelError(
            f"{where} is damaged: it declares logits of {n_vocab:,} tokens, and computes "
            f"{width:,}; export or copy it again"
        )
    largest = max((described.nbytes or 0 for described in known.values()), default=0)
    if largest > MAX_CONSTANT_BYTES + UNPACKED * weight_bytes:
        raise ModelError(
            f"{where} is damaged: it computes a value of {largest >> 20:,} MiB, whatever the text, "
            f"from weights of {weight_bytes >> 20:,} MiB; export or copy it again"
        )


def peak_bytes(
    flow: Flow, stage_of: Sequence[int | None], feeds: Mapping[str, tuple[int, ...]]
) -> tuple[int, list[int]]:
    """Peak memory of the intermediate values of the graph and of each stage, when nodes run in
    order.

    CPUs compute half precision in single precision, so such a value exists twice. Fused attention
    needs room for scores. The graph writes its results to memory of ours.
    """
    known = infer(flow.model, feeds)
    last_use = {name: max(users) for name, users in flow.consumers.items()}
    fed = flow.descendants(flow.inputs, through_shapes=True)
    peaks = [0] * (1 + max(stage or 0 for stage in stage_of))
    live, whole = [0] * len(peaks), 0
    dying: dict[int, list[tuple[int, int]]] = {}
    for i, node in enumerate(flow.nodes):
        stage = stage_of[i]
        if i in fed and stage is not None and node.op_type not in _VIEWS:
            is_fused = node.op_type == FUSED_ATTENTION
            score_bytes = _score_bytes(node, known) if is_fused else 0
            peaks[stage] = max(peaks[stage], live[stage] + score_bytes)
            whole = max(whole, sum(live) + score_bytes)
            for name in node.output:
                if name in flow.outputs:
                    continue
                described = known.get(name)
                size = (described.nbytes if described else None) or 0
                if described and described.kind == TensorProto.FLOAT16:
                    size *= 3
                live[stage] += size
                peaks[stage], whole = max(peaks[stage], live[stage]), max(whole, sum(live))
                dying.setdefault(last_use.get(name, len(flow.nodes)), []).append((stage, size))
        for ended, size in dying.pop(i, ()):
            live[ended] -= size
    return whole, peaks


def _score_bytes(node: NodeProto, known: Mapping[str, Described]) -> int:
    """Bytes of fused attention's scores, [rows, heads, new tokens, past and new tokens]."""
    ids, past = (known.get(name) for name in (node.input[0], node.input[_PAST_KEYS]))
    if not (ids and past and ids.shape and past.shape and ids.nbytes and past.nbytes):
        return 0
    heads = next((item.i for item in node.attribute if item.name == "num_heads"), 1)
    n_rows, n_new, n_past = ids.shape[0], ids.shape[1], past.shape[2]
    return 4 * heads * (n_rows or 1) * (n_new or 1) * ((n_past or 0) + (n_new or 0))


def _is_standard(domain: str, op_type: str) -> bool:
    return domain in {"", "ai.onnx"} and defs.has(op_type)


def _stand_ins(node: NodeProto, graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """Standard nodes with outputs of the same types and shapes as those of `node`."""
    if _is_standard(node.domain, node.op_type):
        yield node
        return
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    for place, name in enumerate(node.output):
        if not name:
            continue
        if node.op_type == "MatMulNBits":
            stand_in = f"{name}.weights"
            shape = [attributes.get("K"), attributes.get("N")]
            graph.input.append(helper.make_tensor_value_info(stand_in, TensorProto.FLOAT, shape))
            yield helper.make_node("MatMul", [node.input[0], stand_in], [name])
        elif node.op_type == "GatherBlockQuantized" and len(node.input) > 2:
            scales, repeats = f"{name}.scales", f"{name}.repeats"
            counts = np.array([1, 1, attributes.get("block_size", 128)])  # weights per scale
            graph.initializer.append(numpy_helper.from_array(counts, repeats))
            yield helper.make_node("Gather", [node.input[2], node.input[1]], [scales], axis=0)
            yield helper.make_node("Tile", [scales, repeats], [name])
        elif node.op_type == "GroupQueryAttention" and place in {1, 2}:
            yield helper.make_node("Identity", [node.input[2 + place]], [name])
        else:
            yield helper.make_node("Identity", [node.input[0]], [name])
