"""Replaces computations of shapes in a graph by constants where possible.

An export computes the shapes of its values in every run and layer, which are a third of a small
decoder's nodes. Evaluated for several batch sizes, most of these numbers are constant, and most
shapes vary in only one dimension, which operators can infer. Only integers are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.graph.rewriting import LOGIT_ROWS, MaskForm, pruned
from edgespec_runtimes.onnx.graph.shapes import Described, infer
from edgespec_runtimes.onnx.memory import decoder_needs

Shape = tuple[int, ...]
Numbers = np.ndarray[Any, Any]

MAX_NUMBERS = 16
"""Longer integer tensors are not treated as shapes."""
ROUNDS = 3
"""Rounds of folding: a shape found in one round may make others known."""


def sizes_to_compare(
    roles: Roles, masks: Sequence[MaskForm], max_new: int, max_past: int, buffer_tokens: int = 0
) -> list[dict[str, Shape]]:
    """Input shapes of a rewritten decoder for the smallest, the largest and a medium batch."""
    sizes = ((1, 0, 0), (3, 7, 2), (max_new, max_past, max_new))
    return [
        decoder_needs.feed_shapes(roles, masks, n_new, n_past, buffer_tokens)
        | {LOGIT_ROWS: (n_chosen,)}
        for n_new, n_past, n_chosen in sizes
    ]


def folded(model: onnx.ModelProto, sizes: Sequence[Mapping[str, Shape]]) -> onnx.ModelProto:
    """Fold shapes of the model in place; each of `sizes` has the shapes of all inputs.

    Integers that are the same for all of `sizes` are taken as constant.
    """
    for _ in range(ROUNDS):
        folding = _Folding(model, [infer(model, feeds) for feeds in sizes])
        for node in model.graph.node:
            folding.fold(node)
        if not folding.has_changed:
            break
        known = {tensor.name for tensor in model.graph.initializer}
        model.graph.initializer.extend(
            t for name, t in folding.constants.items() if name not in known
        )
        pruned(model)
    return model


class _Folding:
    """The known integers of a graph for each of the sizes, with which its nodes are folded."""

    def __init__(self, model: onnx.ModelProto, known: Sequence[Mapping[str, Described]]) -> None:
        self.constants: dict[str, TensorProto] = {}
        """Constants to add to the graph, by name."""
        self.has_changed = False
        self._known = known
        self._constants = _small_integers(model.graph)
        self._numbers = [_computed(model.graph, self._constants, shapes) for shapes in known]

    def fold(self, node: NodeProto) -> None:
        """Give the node constants if it has some; it computes the same."""
        same = self._same(node.output[0]) if len(node.output) == 1 else None
        if same is not None:
            self.has_changed = True
            value = numpy_helper.from_array(same)
            node.CopyFrom(helper.make_node("Constant", [], node.output, value=value))
        elif node.op_type in {"Reshape", "Expand"} and node.input[1] not in self._constants:
            before, after = self._shapes(node.input[0]), self._shapes(node.output[0])
            argument = None
            if node.op_type == "Reshape" and after:
                argument = _reshape(after)
            elif node.op_type == "Expand" and before:
                shapes = [numbers.get(node.input[1]) for numbers in self._numbers]
                argument = _expand(before, shapes)
            if argument:
                node.input[1] = self._constant(np.array(argument, np.int64))

    def _same(self, name: str) -> Numbers | None:
        """The value of `name` if it is computed and equal for all sizes, else None."""
        if name in self._constants:
            return None
        found = [numbers[name] for numbers in self._numbers if name in numbers]
        if len(found) < len(self._numbers):
            return None
        same = all(np.array_equal(found[0], other) for other in found[1:])
        return found[0] if same and found[0].dtype == np.int64 else None

    def _shapes(self, name: str) -> list[Shape] | None:
        """Shapes of a value for all sizes, if they are known and have the same rank."""
        shapes = [shape for known in self._known if (shape := _known_shape(known, name))]
        if len(shapes) < len(self._known) or len({len(shape) for shape in shapes}) > 1:
            return None
        return shapes

    def _constant(self, numbers: Numbers) -> str:
        name = f"edgespec.shape.{numbers.ndim}.{'_'.join(str(n) for n in numbers.flat)}"
        self.has_changed = True
        self.constants[name] = numpy_helper.from_array(numbers, name)
        return name


def _known_shape(known: Mapping[str, Described], name: str) -> Shape | None:
    described = known.get(name)
    if described is None or described.shape is None:
        return None
    dims = tuple(dim for dim in described.shape if dim is not None)
    return dims if len(dims) == len(described.shape) else None


def _reshape(outputs: Sequence[Shape]) -> list[int] | None:
    """Shape argument of Reshape if at most one dimension varies, else None."""
    argument = [dims[0] if len(set(dims)) == 1 else -1 for dims in zip(*outputs, strict=True)]
    return argument if argument.count(-1) <= 1 and 0 not in argument else None


def _expand(inputs: Sequence[Shape], targets: Sequence[Numbers | None]) -> list[int] | None:
    """Shape argument of Expand, with 1 for unchanged dimensions; None if it varies."""
    argument = []
    shapes = [tuple(numbers.tolist()) for numbers in targets if numbers is not None]
    if len(shapes) < len(inputs) or {len(s) for s in shapes} != {len(i) for i in inputs}:
        return None
    for before, after in zip(zip(*inputs, strict=True), zip(*shapes, strict=True), strict=True):
        if all(new in {1, old} for old, new in zip(before, after, strict=True)):
            argument.append(1)
        elif len(set(after)) == 1 and after[0] > 0:
            argument.append(after[0])
        else:
            return None
    return argument


def _small_integers(graph: onnx.GraphProto) -> dict[str, Numbers]:
    """Integer constants of the graph that may be indices or shapes."""
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    tensors += [
        (node.output[0], node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    ]
    found = {}
    for name, tensor in tensors:
        is_inside = tensor.data_location != TensorProto.EXTERNAL
        if tensor.data_type == TensorProto.INT64 and is_inside and sum(tensor.dims) <= MAX_NUMBERS:
            with suppress(ValueError):  # damaged; onnxruntime will report it
                found[name] = numpy_helper.to_array(tensor)
    return found


def _computed(
    graph: onnx.GraphProto, constants: Mapping[str, Numbers], known: Mapping[str, Described]
) -> dict[str, Numbers]:
    """Integers that can be computed from shapes and constants, by name."""
    numbers = dict(constants)
    for node in graph.node:
        if node.op_type == "Shape" and not node.attribute:
            shape = _known_shape(known, node.input[0])
            if shape is not None:
                numbers[node.output[0]] = np.array(shape, np.int64)
        elif (rule := _RULES.get(node.op_type)) and all(name in numbers for name in node.input):
            with suppress(TypeError, ValueError, IndexError):  # damaged, or no shapes
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                result = rule(*(numbers[name] for name in node.input), **attributes)
                if result.size <= MAX_NUMBERS:
                    numbers[node.output[0]] = result
    return numbers


def _filled(shape: Numbers, value: TensorProto | None = None) -> Numbers:
    if shape.size != 1 or not 0 < shape[0] <= MAX_NUMBERS:
        raise ValueError("this is no shape")
    filling = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return np.full(shape, filling[0])


def _divided(numbers: Numbers, by: Numbers) -> Numbers:
    """The quotient of non-negative sizes, which does not depend on the rounding direction."""
    if (numbers < 0).any() or (by <= 0).any():
        raise ValueError("these are no sizes")
    return np.floor_divide(numbers, by)


def _cast(numbers: Numbers, to: int) -> Numbers:
    if to != TensorProto.INT64:
        raise ValueError("this is no shape")
    return numbers.astype(np.int64)


def _squeezed(numbers: Numbers, axes: Any = None) -> Numbers:
    return np.squeeze(numbers, None if axes is None else tuple(np.asarray(axes).tolist()))


def _unsqueezed(numbers: Numbers, axes: Any) -> Numbers:
    return np.expand_dims(numbers, tuple(np.asarray(axes).tolist()))


_RULES: dict[str, Callable[..., Numbers]] = {
    "Add": np.add,
    "Cast": _cast,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "ConstantOfShape": _filled,
    "Div": _divided,
    "Equal": np.equal,
    "Gather": lambda numbers, at, axis=0: np.take(numbers, at, axis),
    "Mul": np.multiply,
    "Reshape": lambda numbers, shape, allowzero=0: numbers.reshape(shape),
    "Squeeze": _squeezed,
    "Sub": np.subtract,
    "Unsqueeze": _unsqueezed,
    "Where": np.where,
}
"""Functions of operators on integers; nodes of other operators are not folded."""
