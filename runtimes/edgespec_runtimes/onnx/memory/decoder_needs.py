"""Memory needs of a decoder besides its weights, for different batch sizes.

Arithmetic on inferred shapes; runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import TensorProto, helper

from edgespec.registry import ModelRequest
from edgespec_runtimes.onnx.files.roles import IDS, MASK, POSITIONS, Roles
from edgespec_runtimes.onnx.files.source_model import SourceModel, StoredWeight
from edgespec_runtimes.onnx.graph.cutting import Cut
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION, PACKED, Flow, has_any
from edgespec_runtimes.onnx.graph.layers import find_stages
from edgespec_runtimes.onnx.graph.rewriting import (
    LOGIT_ROWS,
    PAST_LENGTH,
    PAST_ROWS,
    MaskForm,
    past_name,
)
from edgespec_runtimes.onnx.graph.shapes import Described, infer, peak_bytes

CHUNKS = (128, 64, 32, 16)
"""Possible numbers of prompt tokens in one batch."""
TOKENS_PER_PASS = 512
"""Most prompt tokens in a pass, which may have several batches."""
ALIGNMENT = 256
"""Alignment of tensors in CUDA's memory."""
ARENA_SHARE = 0.25
"""Fragmentation of an arena as a share of its values; enough on the CPU for every export of
docs/models.md, not confirmed on a GPU."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batch sizes, and the memory for computing the largest batch."""

    chunk: int
    tokens_per_pass: int
    compute_bytes: int
    """Bytes of one session that computes everything."""
    other_sessions_bytes: int
    """Additional bytes if each graph of the cut has a session, which keeps its peak memory, and
    values pass between them."""
    max_nodes: int
    """Most nodes of a tree."""

    @property
    def nbytes(self) -> int:
        return self.compute_bytes + self.other_sessions_bytes


def batch_sizes(
    model: onnx.ModelProto,
    roles: Roles,
    masks: Sequence[MaskForm],
    cut: Cut,
    request: ModelRequest,
    n_ctx: int,
    buffer_tokens: int = 0,
) -> list[BatchSizes]:
    """Possible sizes, largest first for each number of nodes; prompts round the same with all.

    `buffer_tokens`: tokens of the buffers to which attention appends.
    """
    flow = Flow(model)
    stage_of = find_stages(flow, roles, request.path.name).stage_of

    @cache
    def peaks(n_new: int) -> list[int]:
        """Peak memory of the whole graph, and of each graph of the cut."""
        shapes = feed_shapes(roles, masks, n_new, n_ctx, buffer_tokens)
        whole, by_stage = peak_bytes(flow, stage_of, shapes)
        found = [0] * len(cut.graphs)
        for piece in cut.pieces:
            found[piece.graph] = max(found[piece.graph], by_stage[piece.stage])
        return [whole, *found]

    def sizes(max_nodes: int, chunk: int) -> BatchSizes:
        pairs = zip(peaks(max_nodes), peaks(chunk), strict=True)
        whole, *largest = (max(pair) for pair in pairs)
        others = max(0, sum(largest) + passed_bytes - whole)
        return BatchSizes(chunk, per_pass, whole + fed_bytes, others, max_nodes)

    per_pass = min(request.batch_size or TOKENS_PER_PASS, n_ctx)
    one_chunk = min(CHUNKS[0], per_pass)
    known = infer(model, feed_shapes(roles, masks, one_chunk, n_ctx, buffer_tokens))
    n_chunks = -(-per_pass // one_chunk)
    table_bytes = 2 * roles.head_size * (n_ctx + one_chunk)
    fed_bytes = _mask_bytes(masks, per_pass, n_ctx) + (
        4 * table_bytes if has_any(model.graph, [FUSED_ATTENTION]) else 0
    )
    fed_bytes += n_chunks * _value_bytes(known, (name for name, _ in cut.embeddings), 0)
    passed_bytes = n_chunks * _passed_bytes(known, cut, table_bytes)
    chunks = dict.fromkeys(min(n, per_pass) for n in CHUNKS)
    numbers = (request.max_nodes, *request.fewer_nodes)
    return [sizes(max_nodes, chunk) for max_nodes in numbers for chunk in chunks]


def feed_shapes(
    roles: Roles,
    masks: Sequence[MaskForm],
    n_new: int,
    n_past: int,
    buffer_tokens: int = 0,
) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs for a batch after `n_past` tokens, which may be in buffers."""
    n_all = n_past + n_new
    shapes: dict[str, tuple[int, ...]] = {
        IDS: (1, n_new),
        POSITIONS: (1, n_new),
        MASK: (1, n_all),
        PAST_LENGTH: (1,),
        PAST_ROWS: (1, n_past),
        LOGIT_ROWS: (1,),
    }
    shapes |= {mask.name: (1, 1, n_new, n_all) for mask in masks}
    cache: tuple[int, ...] = (n_past, roles.kv_heads, roles.head_size)
    if buffer_tokens:
        cache = (1, roles.kv_heads, buffer_tokens, roles.head_size)
    for layer in range(roles.n_layers):
        shapes |= {past_name(layer, what): cache for what in ("key", "value")}
    return shapes


def device_bytes(weights: Sequence[StoredWeight]) -> int:
    """Bytes of tensors in a device's memory, including alignment."""
    return sum(-(-weight.nbytes // ALIGNMENT) * ALIGNMENT for weight in weights)


def unpacked_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the largest packed matrix when unpacked to single precision, as GPUs do for more
    than a few tokens."""
    packed = (node for node in model.graph.node if node.op_type in PACKED)
    shapes = ({attribute.name: attribute.i for attribute in node.attribute} for node in packed)
    return max((int(4 * shape.get("K", 0) * shape.get("N", 0)) for shape in shapes), default=0)


def resident_bytes(weight: StoredWeight) -> int:
    """Resident bytes of a weight in onnxruntime, which on CPUs converts half to single
    precision."""
    return weight.nbytes * (2 if weight.kind == TensorProto.FLOAT16 else 1)


def loading_bytes(weights: Iterable[StoredWeight]) -> int:
    """Temporary bytes while onnxruntime packs weights.

    Measured with matrices of equal size: 1.5 copies, with conversion from half precision 4.6.
    """
    return max(
        (
            resident_bytes(weight) * (6 if weight.kind == TensorProto.FLOAT16 else 2)
            for weight in weights
        ),
        default=0,
    )


def dequantised_bytes(model: onnx.ModelProto, cut: Cut, source: SourceModel) -> list[int]:
    """Bytes of each piece's weights that DequantizeLinear makes floats of in every run.

    onnxruntime folds no such node; those with blocks become part of a packed product.
    """
    turned = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Transpose"}
    names = {
        turned.get(node.input[0], node.input[0])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and not any(item.name == "block_size" and item.i for item in node.attribute)
    }
    return [
        sum(4 * math.prod(source.weights[name].shape) for _, name in piece.weights if name in names)
        for piece in cut.pieces
    ]


def folded_weights(model: onnx.ModelProto) -> set[str]:
    """Names of weights that are all that an operator reads, so that loading computes it."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return {name for node in graph.node if constants.issuperset(node.input) for name in node.input}


def converted_bytes(
    model: onnx.ModelProto, cut: Cut, source: SourceModel, dequantised: Sequence[int]
) -> int:
    """Memory of single-precision copies of weights on CPUs.

    Each session converts one weight at a time and keeps the memory. A weight that the graph
    transposes is transposed in half precision before.
    """
    turned = {node.input[0] for node in model.graph.node if node.op_type == "Transpose"}
    largest = [0] * len(cut.graphs)
    for piece, nbytes in zip(cut.pieces, dequantised, strict=True):
        largest[piece.graph] = max(largest[piece.graph], nbytes)
    for piece in cut.pieces:
        for _, name in piece.weights:
            weight = source.weights[name]
            if weight.kind == TensorProto.FLOAT16:
                copies = 3 if name in turned else 2
                largest[piece.graph] = max(largest[piece.graph], copies * weight.nbytes)
    return sum(largest)


def _mask_bytes(masks: Sequence[MaskForm], n_tokens: int, n_ctx: int) -> int:
    """Bytes of the masks for a prompt's batches, all of which are made before a pass."""
    kinds = (helper.tensor_dtype_to_np_dtype(mask.kind) for mask in masks)
    return n_tokens * n_ctx * sum(kind.itemsize for kind in kinds)


def _passed_bytes(known: Mapping[str, Described], cut: Cut, table_bytes: int) -> int:
    """Bytes of one batch's values that wait for later pieces, such as hidden states and angles.

    Each graph's session keeps the most that its own results take at once.
    """
    read_last = {name: i for i, piece in enumerate(cut.pieces) for _, name in piece.inputs}
    waiting: dict[str, int] = {}
    most = [0] * len(cut.graphs)
    for i, piece in enumerate(cut.pieces):
        waiting |= {name: piece.graph for _, name in piece.outputs if read_last.get(name, -1) > i}
        mine = (name for name, graph in waiting.items() if graph == piece.graph)
        most[piece.graph] = max(most[piece.graph], _value_bytes(known, mine, table_bytes))
        waiting = {name: graph for name, graph in waiting.items() if read_last[name] > i}
    return sum(most)


def _value_bytes(known: Mapping[str, Described], names: Iterable[str], table_bytes: int) -> int:
    """Bytes of values; those of unknown shape are tables of angles cut to the text."""
    found = (known[name].nbytes if name in known else None for name in names)
    return sum(table_bytes if nbytes is None else nbytes for nbytes in found)
