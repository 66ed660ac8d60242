"""Shapes that a graph computes become constants only where they are, and change no result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from onnx import TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, POSITIONS, find_roles
from edgespec_runtimes.onnx.graph.flow import simplified
from edgespec_runtimes.onnx.graph.rewriting import LOGIT_ROWS, PAST_LENGTH, rewritten
from edgespec_runtimes.onnx.prepare.folding import folded, sizes_to_compare
from edgespec_runtimes.onnx.prepare.masks import causal, find_masks

TARGET = Path(__file__).parents[2] / "models" / "edgespec-target-onnx-fp16" / "model.onnx"


def graph_of(nodes: list[onnx.NodeProto], **constants: list[int]) -> onnx.ModelProto:
    """A graph from "x" [tokens, 8] and constants to "y"."""
    graph_input = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 8])
    graph_output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", [graph_input], [graph_output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def reshaped(last: list[onnx.NodeProto], **constants: list[int]) -> onnx.ModelProto:
    """x is reshaped as `last` says, from "n", its number of tokens, [1]."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        *last,
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    return graph_of(nodes, first=[0], **constants)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


SIZES = [{"x": (n, 8)} for n in (1, 6, 200)]


def test_a_shape_that_varies_in_one_dimension_is_left_to_the_operator() -> None:
    concat = helper.make_node("Concat", ["n", "rest"], ["wanted"], axis=0)
    model = folded(reshaped([concat], rest=[2, 4]), SIZES)
    assert operators(model) == ["Reshape"]
    argument = model.graph.node[0].input[1]
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == argument)
    assert numpy_helper.to_array(tensor).tolist() == [-1, 2, 4]


def test_a_shape_that_varies_in_two_dimensions_stays_computed() -> None:
    last = [
        helper.make_node("Div", ["eight", "n"], ["part"]),
        helper.make_node("Mul", ["n", "n"], ["square"]),
        helper.make_node("Concat", ["square", "part"], ["wanted"], axis=0),
    ]
    model = reshaped(last, eight=[8])
    before = operators(model)
    assert operators(folded(model, [{"x": (n, 8)} for n in (1, 2, 4)])) == before


def test_an_expansion_keeps_what_varies() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Concat", ["two", "shape"], ["wanted"], axis=0),
        helper.make_node("Unsqueeze", ["x", "zero"], ["rows"]),
        helper.make_node("Expand", ["rows", "wanted"], ["y"]),
    ]
    model = folded(graph_of(nodes, two=[2], zero=[0]), SIZES)
    assert operators(model) == ["Unsqueeze", "Expand"]
    argument = numpy_helper.to_array(model.graph.initializer[-1])
    assert argument.tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Gather", ["shape", "far"], ["n"]),
        helper.make_node("Div", ["shape", "none"], ["n"]),
        helper.make_node("Concat", ["shape", "one"], ["n"], axis=3),
    ],
)
def test_integers_that_cannot_be_computed_are_left_to_onnxruntime(node: onnx.NodeProto) -> None:
    shape = helper.make_node("Shape", ["x"], ["shape"])
    reshape = helper.make_node("Reshape", ["x", "n"], ["y"])
    model = graph_of([shape, node, reshape], far=[9], none=[0, 0], one=[1])
    assert node.op_type in operators(folded(model, SIZES[:1]))


@pytest.mark.slow
def test_the_shipped_target_computes_the_same_with_two_fifths_fewer_nodes() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    where = str(TARGET)
    model = simplified(onnx.load(TARGET), where)
    roles = find_roles(model.graph, where)
    masks = find_masks(model, roles, 256, where)
    as_it_was = rewritten(model, roles, masks, where)
    constant = onnx.ModelProto()
    constant.CopyFrom(as_it_was)
    folded(constant, sizes_to_compare(roles, masks, 128, 256))
    assert len(constant.graph.node) < 0.6 * len(as_it_was.graph.node)

    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (as_it_was, constant)
    ]
    rng = np.random.default_rng(0)
    for n_past, n_new, chosen in ((0, 5, [4]), (1, 1, [0]), (30, 1, []), (200, 17, [0, 3, 16])):
        (form,) = masks
        seen = np.where(causal(n_past, n_new), form.seen, form.unseen)
        feeds: dict[str, np.ndarray] = {
            IDS: rng.integers(0, roles.n_vocab, (1, n_new)),
            POSITIONS: np.arange(n_past, n_past + n_new)[None],
            PAST_LENGTH: np.array([n_past]),
            LOGIT_ROWS: np.array(chosen, np.int64),
            form.name: seen[None, None].astype(helper.tensor_dtype_to_np_dtype(form.kind)),
        }
        for value in sessions[0].get_inputs():
            if value.name not in feeds:
                feeds[value.name] = rng.normal(size=(n_past, *value.shape[1:])).astype(np.float16)
        results = []
        for session in sessions:
            names = {value.name for value in session.get_inputs()}
            fed = {name: array for name, array in feeds.items() if name in names}
            results.append(session.run([LOGITS], fed)[0])
        assert results[0].shape == (1, len(chosen), roles.n_vocab)
        np.testing.assert_array_equal(*results)
