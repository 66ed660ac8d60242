"""Unusual layouts and inputs of exports are understood, and compute what usual ones do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.source_model import find_model
from onnx_files import DATA_FILE, edit_graph, write_llama
from onnx_models import open_paged, open_resident
from onnx_reference import WholeModel
from paging_contract import one_by_one
from port_calls import logits_of_a_tree
from port_contract import TEXT

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model", layers=2)


def lookup(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if "input_ids" in node.input[1:2])


def put_first(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    for i, node in enumerate(nodes):
        model.graph.node.insert(i, node)


def ids_reshaped(model: onnx.ModelProto) -> None:
    """GPT-2 reads ids.view(-1, ids.shape[-1])."""
    one, minus = np.array(1, np.int64), np.array([-1], np.int64)
    lookup(model).input[1] = "ids"
    put_first(
        model,
        [
            helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(one)),
            helper.make_node("Constant", [], ["rows"], value=numpy_helper.from_array(minus)),
            helper.make_node("Constant", [], ["axis"], value=numpy_helper.from_array(one * 0)),
            helper.make_node("Shape", ["input_ids"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "one"], ["tokens"], axis=0),
            helper.make_node("Reshape", ["tokens", "rows"], ["tokens.1"]),
            helper.make_node("Concat", ["rows", "tokens.1"], ["shape"], axis=0),
            helper.make_node("Reshape", ["input_ids", "shape"], ["ids"]),
        ],
    )


def branch_chosen(model: onnx.ModelProto) -> None:
    """Merged exports choose by an input whether there is a past."""
    node = lookup(model)
    output = node.output[0]
    branches = {}
    for name, op in (("then_branch", "Identity"), ("else_branch", "Neg")):
        value = helper.make_tensor_value_info(f"{name}.made", TensorProto.FLOAT, None)
        inside = [helper.make_node(op, ["looked.up"], [value.name])]
        branches[name] = helper.make_graph(inside, name, [], [value])
    node.output[0] = "looked.up"
    place = list(model.graph.node).index(node) + 1
    choice = helper.make_node("If", ["use_cache_branch"], [output], **branches)
    model.graph.node.insert(place, choice)
    wanted = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    model.graph.input.append(wanted)


def merged(model: onnx.ModelProto) -> None:
    """Optimum merged two decoders: a choice is the graph, with the same outputs."""
    graph = model.graph
    outputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in graph.output]
    branches = {
        f"{name}_branch": helper.make_graph(graph.node, name, [], outputs)
        for name in ("then", "else")
    }
    for node in branches["else_branch"].node:  # a decoder that must not be taken
        if "logits" in node.output:
            node.input[1] = node.input[0]
    names = [value.name for value in outputs]
    choice = helper.make_node("If", ["use_cache_branch"], names, **branches)
    del graph.node[:]
    graph.node.append(choice)
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))


def made_for_single_tokens(model: onnx.ModelProto) -> None:
    """Tracing with one token leaves out that later ones are hidden."""
    node = next(node for node in model.graph.node if node.op_type == "And")
    node.input[0] = node.input[1]
    merged(model)


def logits_chosen(model: onnx.ModelProto) -> None:
    """Exports for browsers can return the logits of the last tokens only."""
    node = next(node for node in model.graph.node if "logits" in node.output)
    place, hidden = list(model.graph.node).index(node), node.input[0]
    node.input[0] = "chosen"
    parts = {"flat": [-1], "ends": [np.iinfo(np.int64).max], "axis.1": [1]}
    nodes = [
        helper.make_node(
            "Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.int64))
        )
        for name, value in parts.items()
    ]
    nodes += [
        helper.make_node("Neg", ["num_logits_to_keep"], ["begin"]),
        helper.make_node("Reshape", ["begin", "flat"], ["begin.1"]),
        helper.make_node("Slice", [hidden, "begin.1", "ends", "axis.1"], ["chosen"]),
    ]
    for i, part in enumerate(nodes):
        model.graph.node.insert(place + i, part)
    wanted = helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, [])
    model.graph.input.append(wanted)


def changed(path: Path, folder: Path, edit: Change) -> Path:
    """The export with an edited graph in a folder of its own."""
    copy = shutil.copytree(path.parent, folder) / path.name
    edit_graph(copy, edit)
    return copy


@pytest.mark.costly
@pytest.mark.parametrize(
    "edit", [ids_reshaped, branch_chosen, merged, logits_chosen], ids=lambda edit: edit.__name__
)
@pytest.mark.parametrize("opened", [open_resident, open_paged], ids=["resident", "paged"])
def test_a_variant_computes_what_the_usual_export_does(
    path: Path, tmp_path: Path, edit: Change, opened: Callable[[Path], object]
) -> None:
    logits = []
    for one in (path, changed(path, tmp_path / "changed", edit)):
        loaded = opened(one)
        logits.append(one_by_one(loaded, loaded.vocabulary.encode(TEXT)[:6]))  # type: ignore[attr-defined, arg-type]
        loaded.close()  # type: ignore[attr-defined]
    assert np.array_equal(*logits)


def test_a_merged_decoder_for_single_tokens_computes_each_by_itself(
    path: Path, tmp_path: Path
) -> None:
    single = changed(path, tmp_path / "changed", made_for_single_tokens)
    loaded, alone = open_resident(single), WholeModel(single)
    tokens = loaded.vocabulary.encode(TEXT)[:6]
    computed = logits_of_a_tree(loaded, tokens)
    loaded.close()
    for row, guess in zip(computed, ([], tokens[:1], tokens[1:2]), strict=True):
        assert np.allclose(row, alone.decode_all([*tokens, *guess])[-1], atol=1e-4)


def test_a_merged_decoder_is_taken_from_its_parts(path: Path) -> None:
    """Optimum left the decoders that it merged beside the result."""
    names = ("decoder_model", "decoder_with_past_model", "decoder_model_merged")
    for name in names:
        (path.parent / f"{name}.onnx").write_bytes(path.read_bytes())
    path.unlink()
    assert find_model(path.parent) == path.parent / "decoder_model_merged.onnx"


def browser_layout(path: Path, *names: str) -> Path:
    """The model's folder with graphs below it in `onnx`."""
    folder = path.parent
    (folder / "onnx").mkdir()
    for name in names:
        (folder / "onnx" / name).write_bytes(path.read_bytes())
    path.unlink()
    (folder / DATA_FILE).rename(folder / "onnx" / DATA_FILE)
    return folder


def test_of_several_graphs_below_the_usual_one_is_taken(path: Path) -> None:
    folder = browser_layout(path, "model.onnx", "model_q4.onnx")
    assert find_model(folder) == folder / "onnx" / "model.onnx"


def test_several_graphs_below_are_a_question(path: Path) -> None:
    folder = browser_layout(path, "model_q4.onnx", "model_int8.onnx")
    with refuses(ModelError):
        find_model(folder)
