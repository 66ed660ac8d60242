"""Tiny models that onnxruntime-genai's builder made: `data/make_genai.py` says how."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_DATA = Path(__file__).parent / "data"
LLAMA = _DATA / "genai-llama-fp32"
"""Its embedding is the transposed head."""
QWEN = _DATA / "genai-qwen3-int4"
"""MatMulNBits; its embedding is the head in blocks of four bits, looked up as such."""
GEMMA = _DATA / "genai-gemma2-fp32"
"""Every other layer sees 24 tokens and expects them in a ring."""
ALL = (LLAMA, QWEN, GEMMA)


def changed_copy(model: Path, folder: Path) -> tuple[onnx.ModelProto, Path]:
    """A copy of a model to be changed: its graph, and the path where that is to be saved."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = folder / "model.onnx"
    return onnx.load(path, load_external_data=False), path


def without_rings(model: Path, folder: Path) -> Path:
    """A copy that keeps all tokens in all layers, as onnxruntime alone can run it."""
    graph, path = changed_copy(model, folder)
    for node in graph.graph.node:
        kept = [item for item in node.attribute if item.name != "sliding_window_cache"]
        del node.attribute[:]
        node.attribute.extend(kept)
    onnx.save(graph, path)
    return path


def with_two_tables(model: Path, folder: Path, first: int) -> Path:
    """A copy with other angles beyond `first` tokens, as the builder writes LongRoPE."""
    graph, path = changed_copy(model, folder)
    tables = [tensor for tensor in graph.graph.initializer if tensor.name.endswith("_cache")]
    names = [tensor.name for tensor in tables]
    branches = []
    for rows, base in ((256, 500.0), (first, 10000.0)):
        angles = np.arange(rows)[:, None] * (base ** -(np.arange(8) / 8))[None]
        values = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
        nodes = [_constant(f"{name}.{rows}", values[name].astype(np.float32)) for name in names]
        outputs = [
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [rows, 8])
            for node in nodes
        ]
        branches.append(helper.make_graph(nodes, f"tables of {rows}", [], outputs))
    switch = [
        helper.make_node("Shape", ["attention_mask"], ["mask.shape"]),
        _constant("one", np.array(1)),
        helper.make_node("Gather", ["mask.shape", "one"], ["total"]),
        _constant("first", np.array(first)),
        helper.make_node("Greater", ["total", "first"], ["is_long"]),
        helper.make_node(
            "If", ["is_long"], names, then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    for tensor in tables:
        graph.graph.initializer.remove(tensor)
    nodes = [*switch, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    onnx.save(graph, path)
    return path


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))
