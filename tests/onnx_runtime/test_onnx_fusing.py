"""Attention in standard operators is computed by fused attention, in a cache that stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx
from onnx import helper, numpy_helper

from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION
from edgespec_runtimes.onnx.model import OnnxModel
from onnx_files import save, write_llama
from onnx_models import about_the_cache, open_paged, open_resident, request
from onnx_reference import WholeModel
from port_calls import logits_of_a_tree

TOKENS = [*range(20, 50)]


def operators(path: Path) -> set[str]:
    """Operators of the graph that edgespec computes."""
    with closing(runtime.prepare(request(path))) as prepared:
        return {node.op_type for node in prepared._deployed.fitted.model.graph.node}


def changed(path: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    model = onnx.load(path)
    change(model.graph)
    save(model, path)
    return path


def first(graph: onnx.GraphProto, operator: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.op_type == operator)


def constant(number: float) -> onnx.NodeProto:
    value = numpy_helper.from_array(np.array(number, np.float32))
    return helper.make_node("Constant", [], ["a number"], value=value)


@pytest.mark.parametrize(
    ("opened", "kv_heads"),
    [
        (open_paged, 2),
        (open_resident, 1),
        (open_resident, 4),
        (open_paged, 1),
        (open_resident, 2),
        (open_paged, 4),
    ],
)
@pytest.mark.costly
def test_it_computes_what_the_export_computes(
    tmp_path: Path, opened: Callable[[Path], OnnxModel], kv_heads: int
) -> None:
    path = write_llama(tmp_path, kv_heads=kv_heads)
    export = WholeModel(path)
    expected = export.decode_all(TOKENS)[-1]
    with closing(opened(path)) as model:
        logits = logits_of_a_tree(model, TOKENS)
    branch = export.decode(TOKENS[0])
    assert np.allclose(logits[:2], [expected, branch], rtol=0, atol=2e-5)


def test_no_operator_copies_the_cache(tmp_path: Path) -> None:
    about = about_the_cache(write_llama(tmp_path), 1, "value")
    assert about == {"Identity", FUSED_ATTENTION}


@pytest.mark.slow
def test_a_factor_of_the_scores_is_their_scale(tmp_path: Path) -> None:
    """Optimum multiplies queries and keys by the square root of the scale, others the scores."""

    def change(graph: onnx.GraphProto) -> None:
        makers = {node.output[0]: node for node in graph.node}
        product = next(
            node
            for node in graph.node
            if node.op_type == "MatMul" and _is_turned(makers, node.input[1])
        )
        scores = product.output[0]
        product.input[:] = [makers[scaled].input[0] for scaled in product.input]
        product.output[0] = "products"
        at = list(graph.node).index(product) + 1
        graph.node.insert(at, helper.make_node("Mul", ["products", "a number"], [scores]))
        graph.node.insert(at, constant(0.5))

    path = changed(write_llama(tmp_path), change)
    assert FUSED_ATTENTION in operators(path)
    expected = WholeModel(path).decode_all(TOKENS)[-1]
    with closing(open_resident(path)) as model:
        assert np.allclose(logits_of_a_tree(model, TOKENS)[0], expected, rtol=0, atol=2e-5)


def _is_turned(makers: dict[str, onnx.NodeProto], value: str) -> bool:
    """True for keys that were transposed and then multiplied."""
    scaled = makers.get(value)
    turned = makers.get(scaled.input[0]) if scaled and scaled.op_type == "Mul" else None
    return turned is not None and turned.op_type == "Transpose"


def another_activation(graph: onnx.GraphProto) -> None:
    first(graph, "Softmax").op_type = "LogSoftmax"


def another_axis(graph: onnx.GraphProto) -> None:
    first(graph, "Softmax").attribute[0].i = 1


def keys_changed_after_they_were_kept(graph: onnx.GraphProto) -> None:
    """A factor for each head is no scale."""
    turned = next(
        node
        for node in graph.node
        if node.op_type == "Transpose" and list(node.attribute[0].ints) == [0, 1, 3, 2]
    )
    at = list(graph.node).index(turned)
    factors = numpy_helper.from_array(np.ones((1, 4, 1, 1), np.float32), "factors")
    graph.initializer.append(factors)
    graph.node.insert(at, helper.make_node("Mul", [turned.input[0], "factors"], ["larger"]))
    turned.input[0] = "larger"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [another_activation, another_axis, keys_changed_after_they_were_kept]
)
def test_what_computes_something_else_stays_as_it_is(
    tmp_path: Path, change: Callable[[onnx.GraphProto], None]
) -> None:
    assert FUSED_ATTENTION not in operators(changed(write_llama(tmp_path), change))


@pytest.mark.costly
@pytest.mark.parametrize("kind", [{"dtype": "float16"}, {"bits": 8}, {"hidden": 48}])
def test_what_rounds_more_coarsely_stays_as_it_is(tmp_path: Path, kind: dict[str, object]) -> None:
    """Half precision and int8; 12 numbers a head are none that fused attention takes."""
    path = write_llama(tmp_path, **kind)  # type: ignore[arg-type]
    assert FUSED_ATTENTION not in operators(path)
