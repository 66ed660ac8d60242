"""Fused attention appends to the KV cache by itself, in buffers that stay where they are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx

from edgespec_runtimes.onnx.files.roles import Roles, find_roles
from edgespec_runtimes.onnx.files.source_model import read_source
from edgespec_runtimes.onnx.graph.flow import simplified
from edgespec_runtimes.onnx.graph.rewriting import appends_in_place
from genai_models import LLAMA, QWEN
from onnx_models import about_the_cache, open_paged, open_resident
from port_calls import prefill


def decoder(path: Path) -> tuple[onnx.ModelProto, Roles]:
    graph = simplified(read_source(path / "model.onnx").model, "it")
    return graph, find_roles(graph.graph, "it")


@pytest.mark.parametrize("path", [LLAMA, QWEN], ids=lambda path: path.name)
def test_a_graph_of_fused_attention_copies_no_cache(path: Path) -> None:
    assert about_the_cache(path, 0, "key") == {"Identity", "GroupQueryAttention"}


def test_a_past_that_is_read_elsewhere_is_no_buffer() -> None:
    """A graph that takes the number of tokens from its past would see the buffer's length."""
    graph, roles = decoder(LLAMA)
    graph.graph.node.add(op_type="Shape", input=[roles.past[1][0]], output=["length"])
    assert not appends_in_place(graph, roles)


def test_a_present_that_is_not_attentions_is_no_buffer() -> None:
    graph, roles = decoder(LLAMA)
    graph.graph.node.add(op_type="Identity", input=["another"], output=[roles.present[0][1]])
    for node in graph.graph.node[:-1]:
        names = {roles.present[0][1]: "another"}
        node.output[:] = [names.get(name, name) for name in node.output]
    assert not appends_in_place(graph, roles)


def test_texts_in_buffers_are_kept_alike_resident_and_paged() -> None:
    with closing(open_resident(LLAMA)) as resident, closing(open_paged(LLAMA)) as paged:
        kept = []
        for model in (resident, paged):
            prefill(model, [*range(20, 40)])
            kept.append(model._caches[0].entries[:, :, :20].copy())
        assert np.allclose(*kept, rtol=0, atol=1e-5)
