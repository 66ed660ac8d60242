"""Fixes what an export leaves open between variants of one decoder.

Some exports hold a decoder with and without a past, or can return fewer logits, as an input tells;
others reshape the ids to the shape that they have. Changes graphs in place.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS
from edgespec_runtimes.onnx.graph.functions import replace_content

USES_PAST = "use_cache_branch"
"""Input of exports of two decoders in one graph: true chooses the one with a past."""
LOGITS_KEPT = ("num_logits_to_keep", "logits_to_keep")
"""Inputs with the number of last tokens whose logits are returned; 0 stands for all."""


def fix_variants(graph: onnx.GraphProto) -> None:
    """Choose the decoder with a past and all logits, and let lookups read the ids themselves."""
    kept = []
    for value in graph.input:
        array = fixed_value(value.name, len(value.type.tensor_type.shape.dim))
        if array is None:
            kept.append(value)
            continue
        graph.initializer.append(numpy_helper.from_array(array, value.name))
    if len(kept) < len(graph.input):
        replace_content(graph.input, kept)
    if any(_is_choice(node) for node in graph.node):
        nodes = [part for node in graph.node for part in _chosen(node, graph)]
        replace_content(graph.node, nodes)
    _unshape_ids(graph)


def is_merged(graph: onnx.GraphProto) -> bool:
    """True if there was a choice of decoders: the one with a past may be traced with one token, so
    that nothing hides later tokens of a batch."""
    return any(tensor.name == USES_PAST for tensor in graph.initializer)


def fixed_value(name: str, n_dims: int) -> np.ndarray | None:
    """The constant value of an input that chooses a variant; None for other inputs."""
    fixed = {USES_PAST: np.bool_(True)} | dict.fromkeys(LOGITS_KEPT, np.int64(0))
    return np.full((1,) * n_dims, fixed[name]) if name in fixed else None


def _is_choice(node: NodeProto) -> bool:
    return node.op_type == "If" and list(node.input) == [USES_PAST]


def _chosen(node: NodeProto, graph: onnx.GraphProto) -> list[NodeProto]:
    """The nodes of the branch with a past, whose constants become the graph's."""
    if not _is_choice(node):
        return [node]
    branch = next((item.g for item in node.attribute if item.name == "then_branch"), None)
    if branch is None or len(branch.output) != len(node.output):
        return [node]
    graph.initializer.extend(branch.initializer)
    results = ((made.name, name) for made, name in zip(branch.output, node.output, strict=True))
    copies = [
        helper.make_node("Identity", [made], [name]) for made, name in results if made != name
    ]
    return [*branch.node, *copies]


def _unshape_ids(graph: onnx.GraphProto) -> None:
    """Read the ids instead of a Reshape of them to [-1, tokens], which is their own shape."""
    maker_of = {name: node for node in graph.node for name in node.output}
    own = [
        node.output[0]
        for node in graph.node
        if node.op_type == "Reshape" and node.input[0] == IDS and _is_own_shape(node, maker_of)
    ]
    for node in graph.node if own else ():
        for i, name in enumerate(node.input):
            if name in own:
                node.input[i] = IDS


def _is_own_shape(node: NodeProto, maker_of: dict[str, NodeProto]) -> bool:
    """True if the shape is a Concat of -1 and the number of tokens, which is of the ids' shape."""
    shape = maker_of.get(node.input[1])
    if shape is None or shape.op_type != "Concat" or len(shape.input) != 2:
        return False
    rows, tokens = (maker_of.get(name) for name in shape.input)
    if rows is None or tokens is None or _constant(rows) != [-1]:
        return False
    while tokens is not None and tokens.op_type in {"Unsqueeze", "Reshape", "Cast", "Identity"}:
        tokens = maker_of.get(tokens.input[0])
    if tokens is None or tokens.op_type != "Gather":
        return False
    sizes, which = maker_of.get(tokens.input[0]), maker_of.get(tokens.input[1])
    is_of_ids = sizes is not None and sizes.op_type == "Shape" and list(sizes.input) == [IDS]
    return is_of_ids and which is not None and _constant(which) in ([1], [-1])


def _constant(node: NodeProto) -> list[int] | None:
    """Integers of a Constant, or of one that is made one-dimensional; else None."""
    if node.op_type != "Constant" or not node.attribute or node.attribute[0].name != "value":
        return None
    numbers: list[int] = numpy_helper.to_array(node.attribute[0].t).reshape(-1).tolist()
    return numbers
