"""Layers are found from a graph's structure, whatever its values are called."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import find_roles
from edgespec_runtimes.onnx.files.source_model import read_source
from edgespec_runtimes.onnx.graph.cutting import ALWAYS, Cut, cut
from edgespec_runtimes.onnx.graph.flow import Flow, simplified
from edgespec_runtimes.onnx.graph.layers import find_stages
from edgespec_runtimes.onnx.graph.rewriting import BIAS, rewritten
from edgespec_runtimes.onnx.prepare.masks import find_masks
from onnx_files import save, write_llama

KINDS = [
    {},
    {"dtype": "float16"},
    {"fused": True},
    {"tied": True},
    {"bits": 4},
    {"bits": 8},
    {"layers": 1},
]


def graph(folder: Path, **kind: object) -> onnx.ModelProto:
    path = write_llama(folder, **kind)  # type: ignore[arg-type]
    return simplified(read_source(path).model, "it")


def cut_of(folder: Path, rows: bool = False, **kind: object) -> Cut:
    path = write_llama(folder, **kind)  # type: ignore[arg-type]
    source = read_source(path)
    model = simplified(source.model, "it")
    roles = find_roles(model.graph, "it")
    masks = () if rows else find_masks(model, roles, 64, "it")
    shapes = {weight.name: weight.shape for weight in source.weights.values()}
    return cut(rewritten(model, roles, masks, "it"), roles, shapes, "it")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.costly
def test_every_layer_has_a_piece_with_its_own_weights(
    tmp_path: Path, kind: dict[str, object]
) -> None:
    pieces = {piece.name: piece for piece in cut_of(tmp_path, **kind).pieces}
    n_layers = kind.get("layers", 3)
    assert [f"layer {i}" in pieces for i in range(4)] == [i < n_layers for i in range(4)]  # type: ignore[operator]
    for i in range(n_layers):  # type: ignore[call-overload]
        # a norm that is one node with the residual sum before it goes with the layer before
        names = {name for _, name in pieces[f"layer {i}"].weights if "norm" not in name}
        layers = {part for name in names for part in name.replace("_", ".").split(".")}
        assert str(i) in layers
        assert not layers & {str(other) for other in range(4) if other != i}


@pytest.mark.costly
@pytest.mark.parametrize(
    "kind",
    # constants of eight bits are folded before a graph is cut, which is not done here
    [kind for kind in KINDS if "fused" not in kind and kind.get("bits") != 8],
    ids=str,
)
def test_layers_of_one_structure_share_one_graph(tmp_path: Path, kind: dict[str, object]) -> None:
    layers = [p.graph for p in cut_of(tmp_path, **kind).pieces if p.name.startswith("layer")]
    assert len(set(layers)) == 1


def test_layers_of_a_fused_model_share_one_graph_but_for_the_ends(tmp_path: Path) -> None:
    pieces = cut_of(tmp_path, fused=True, layers=6).pieces
    layers = [piece.graph for piece in pieces if piece.name.startswith("layer")]
    assert len(set(layers[1:-1])) == 1


def test_names_of_values_do_not_matter(tmp_path: Path) -> None:
    model = graph(tmp_path / "named", layers=2)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    kept |= {tensor.name for tensor in model.graph.initializer}
    names: dict[str, str] = {}
    for node in model.graph.node:
        node.name = ""
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                if name and name not in kept:
                    field[i] = names.setdefault(name, f"x{len(names) * 7919 % 10007}")
    roles = find_roles(model.graph, "it")
    renamed = find_stages(Flow(model), roles, "it")
    original = graph(tmp_path / "named", layers=2)
    expected = find_stages(Flow(original), roles, "it")
    assert renamed.stage_of == expected.stage_of


def test_a_graph_whose_layers_are_not_in_a_row_is_refused(tmp_path: Path) -> None:
    """Here the second layer reads the embeddings: nothing leads through the first one alone."""
    model = graph(tmp_path, layers=2)
    flow = Flow(model)
    stages = find_stages(flow, find_roles(model.graph, "it"), "it")
    lookup = flow.nodes[flow.lookups()[0]].output[0]
    first_end = next(
        name
        for i, node in enumerate(flow.nodes)
        if stages.stage_of[i] == 1
        for name in node.output
        if any(stages.stage_of[user] == 2 for user in flow.consumers.get(name, ()))
        and name != "present.0.key"
    )
    for i, node in enumerate(flow.nodes):
        if stages.stage_of[i] == 2:
            for k, name in enumerate(node.input):
                if name == first_end:
                    node.input[k] = lookup
    with pytest.raises(ModelError):
        find_stages(Flow(model), find_roles(model.graph, "it"), "it")


def test_a_causal_mask_is_found_and_can_be_fed(tmp_path: Path) -> None:
    model = graph(tmp_path)
    (mask,) = find_masks(model, find_roles(model.graph, "it"), 100, "it")
    assert mask.seen == 0.0
    assert mask.unseen < -1e38


def test_a_mask_that_is_made_without_a_past_only_is_found(tmp_path: Path) -> None:
    """And repeated for every head: so onnxruntime-genai builds fp16 for CPUs."""
    model = graph(tmp_path)
    where = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Where")
    mask_name = model.graph.node[where].output[0]
    model.graph.node[where].output[0] = "one"
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value), name)
        for name, value in (("four", [1, 4, 1, 1]), ("second", [1]))
    )
    nodes = [
        onnx.helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
        onnx.helper.make_node("Gather", ["ids.shape", "second"], ["ids.n"]),
        onnx.helper.make_node("Concat", ["ids.n", "ids.n"], ["square"], axis=0),
        onnx.helper.make_node("ConstantOfShape", ["square"], ["zeros"]),
        onnx.helper.make_node("Add", ["one", "zeros"], ["sum"]),  # of past + new columns and new
        onnx.helper.make_node("Tile", ["sum", "four"], [mask_name]),
    ]
    rest = [*model.graph.node][where + 1 :]
    del model.graph.node[where + 1 :]
    model.graph.node.extend([*nodes, *rest])
    (mask,) = find_masks(model, find_roles(model.graph, "it"), 100, "it")
    assert mask.name == mask_name


def test_fused_attention_takes_a_bias(tmp_path: Path) -> None:
    model = graph(tmp_path, fused=True)
    (mask,) = find_masks(model, find_roles(model.graph, "it"), 100, "it")
    assert mask.name == BIAS


def test_a_mask_that_hides_old_tokens_is_not_replaced(tmp_path: Path) -> None:
    """A sliding window hides old tokens: trees are then checked by rows."""
    model = graph(tmp_path)
    above = next(node for node in model.graph.node if node.op_type == "LessOrEqual")
    above.op_type = "Equal"
    assert find_masks(model, find_roles(model.graph, "it"), 100, "it") == ()


def test_half_precision_weights_are_converted_when_it_is_their_turn(tmp_path: Path) -> None:
    cut = cut_of(tmp_path, dtype="float16", tied=True)
    for piece in cut.pieces:
        if piece.weights:
            nodes = onnx.load_from_string(cut.graphs[piece.graph]).graph.node
            assert "If" in {node.op_type for node in nodes}
            assert ALWAYS in {name for _, name in piece.inputs}


def test_weights_are_known_by_one_name(tmp_path: Path) -> None:
    """Exporters write equal tensors once, and Identity nodes that give them further names."""
    path = write_llama(tmp_path, layers=2)
    model = onnx.load(path)
    shared = "model.layers.0.input_layernorm.weight"
    alias = onnx.helper.make_node("Identity", [shared], ["model.norm.weight"])
    kept = [t for t in model.graph.initializer if t.name != "model.norm.weight"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.node.insert(0, alias)
    save(model, path)
    nodes = simplified(read_source(path).model, "it").graph.node
    assert "Identity" not in {node.op_type for node in nodes}
    assert not any("model.norm.weight" in node.input for node in nodes)
