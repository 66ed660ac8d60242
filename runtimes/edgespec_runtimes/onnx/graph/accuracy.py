"""Accuracy level of products with packed 4-bit weights (MatMulNBits): how activations are rounded.

At level 4 they are rounded to eight bits, where the last bit of a float, in which a batch differs
from a single token, may decide the direction.
"""

from __future__ import annotations

import onnx
from onnx import helper

from edgespec_runtimes.onnx.graph.flow import PACKED
from edgespec_runtimes.onnx.graph.functions import replace_content

EIGHT_BITS = 4
_NAME = "accuracy_level"


def levels(graph: onnx.GraphProto) -> frozenset[int]:
    """The levels of packed products; a product that names none is not among them."""
    packed = (node for node in graph.node if node.op_type in PACKED)
    return frozenset(item.i for node in packed for item in node.attribute if item.name == _NAME)


def rounds_to_eight_bits(graph: onnx.GraphProto) -> bool:
    return EIGHT_BITS in levels(graph)


def set_accuracy(graph: onnx.GraphProto, level: int) -> None:
    """Set the level of all packed products in place."""
    for node in graph.node:
        if node.op_type in PACKED:
            kept = [item for item in node.attribute if item.name != _NAME]
            replace_content(node.attribute, [*kept, helper.make_attribute(_NAME, level)])
