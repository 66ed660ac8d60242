"""Mixtures of experts in ONNX's own operator: paged by layer, and said to be."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgespec_runtimes.onnx import runtime
from onnx_files import save, write_llama
from onnx_models import open_paged, open_resident, request
from paging_contract import one_by_one

HIDDEN, WIDTH, EXPERTS = 64, 48, 4


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaMA with a layer of experts before its head."""
    path = write_llama(tmp_path_factory.mktemp("mixture"), hidden=HIDDEN)
    model = onnx.load(path)
    head = model.graph.node[-1]
    normed, random = head.input[0], np.random.default_rng(0)

    def weight(name: str, *shape: int) -> str:
        values = random.standard_normal(shape).astype(np.float32) * 0.1
        model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    router = weight("router", HIDDEN, EXPERTS)
    up = weight("experts.up", EXPERTS, WIDTH, HIDDEN)
    down = weight("experts.down", EXPERTS, HIDDEN, WIDTH)
    shape = numpy_helper.from_array(np.array([-1, EXPERTS], np.int64), "rows")
    model.graph.initializer.append(shape)
    nodes = [
        helper.make_node("MatMul", [normed, router], ["scores.3d"]),
        helper.make_node("Reshape", ["scores.3d", "rows"], ["scores"]),
        helper.make_node(
            "MoE",
            [normed, "scores", up, "", down, ""],
            ["mixed"],
            domain="com.microsoft",
            k=2,
            activation_type="silu",
        ),
        helper.make_node("MatMul", ["mixed", head.input[1]], ["logits"]),
    ]
    del model.graph.node[-1]
    model.graph.node.extend(nodes)
    save(model, path)
    return path.parent


@pytest.mark.slow
def test_a_mixture_of_experts_says_that_its_layers_are_paged_whole(mixture: Path) -> None:
    with closing(runtime.prepare(request(mixture))) as prepared:
        assert any("mixture of experts" in note for note in prepared.notes())


@pytest.mark.slow
def test_paged_by_layer_it_computes_what_it_computes_in_memory(mixture: Path) -> None:
    tokens = list(range(40, 48))
    with closing(open_resident(mixture)) as resident, closing(open_paged(mixture, 0.0)) as paged:
        # constant weights are multiplied by other kernels than weights that come in as inputs
        expected = one_by_one(resident, tokens)
        assert np.allclose(one_by_one(paged, tokens), expected, rtol=0, atol=1e-4)
        assert paged.paging().bytes_read > 0
