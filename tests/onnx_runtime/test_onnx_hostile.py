"""ONNX models that cannot be used are refused with one sentence, before their weights are read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.registry import ModelRequest
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.files.outline import read_outline
from edgespec_runtimes.onnx.ort.sessions import StopFlag, translated
from onnx_files import DATA_FILE, edit_graph, write_llama, write_tokenizer

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_llama(tmp_path / "model", layers=1, hidden=32, vocab=300)
    return tmp_path / "model"


def prepare(path: Path, **options: object) -> None:
    settings: dict[str, object] = {"ctx_size": 64, "max_nodes": 5, "max_branches": 2}
    request = ModelRequest(path=path, owner="target", n_threads=1, **settings | options)  # type: ignore[arg-type]
    runtime.prepare(request).close()


def prepare_refuses(path: Path) -> None:
    with refuses(ModelError):
        prepare(path)


def relocate(folder: Path, location: str) -> None:
    def edit(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location

    edit_graph(folder / "model.onnx", edit)


def test_logits_of_a_type_that_numpy_lacks_are_refused(folder: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        (logits,) = (value for value in model.graph.output if value.name == "logits")
        logits.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16

    edit_graph(folder / "model.onnx", edit)
    prepare_refuses(folder)


def test_a_folder_and_its_model_file_are_both_recognised(folder: Path) -> None:
    assert runtime.recognises(folder)
    assert runtime.recognises(folder / "model.onnx")
    assert not runtime.recognises(folder / "config.json")
    prepare(folder)
    prepare(folder / "model.onnx")


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / DATA_FILE).unlink()
    prepare_refuses(folder)


def test_weights_that_were_cut_short_are_refused(folder: Path) -> None:
    data = folder / DATA_FILE
    data.write_bytes(data.read_bytes()[:-5])
    prepare_refuses(folder)


@pytest.mark.parametrize(
    "location", ["../model/model.onnx_data", "/etc/passwd", "a/../../x", "C:\\x", "..\\x", "", "\0"]
)
def test_weights_outside_the_folder_are_refused(folder: Path, location: str) -> None:
    relocate(folder, location)
    prepare_refuses(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / DATA_FILE).rename(tmp_path / "elsewhere")
    (folder / DATA_FILE).symlink_to(tmp_path / "elsewhere")
    prepare_refuses(folder)


def test_a_download_cache_of_links_is_accepted(folder: Path, tmp_path: Path) -> None:
    """Hugging Face's cache links model and data from a snapshot to one folder of blobs."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in folder.iterdir():
        (snapshot / file.name).symlink_to(file)
    prepare(snapshot)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json", 999)
    prepare_refuses(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"model": 1}', "[]", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_refused(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    prepare_refuses(folder)


TEMPLATE = {"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "<s>"}}]}
START = {"<s>": {"id": "<s>", "ids": [99_999_999], "tokens": ["<s>"]}}


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": characters}}
            for characters in ("/////wAAAAA=", "AAAAAAAA")
        ),
        {"post_processor": TEMPLATE | {"special_tokens": {}}},
        {"post_processor": TEMPLATE | {"special_tokens": START}},
    ],
)
def test_a_tokenizer_that_panics_is_refused(folder: Path, changes: dict[str, object]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(content))
    prepare_refuses(folder)


def test_a_name_that_no_file_can_have_is_missing(folder: Path) -> None:
    config = {"model": {"decoder": {"filename": "a" * 300}}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    prepare(folder)
    relocate(folder, "a" * 300)
    prepare_refuses(folder)


@pytest.mark.parametrize("ends", [None, 300, -1])
def test_a_model_must_say_how_a_text_ends(folder: Path, ends: int | None) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = ends
    (folder / "config.json").write_text(json.dumps(config))
    prepare_refuses(folder)


def test_several_models_in_a_folder_are_a_question(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "a.onnx")
    (folder / "b.onnx").write_bytes(b"")
    prepare_refuses(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"n_gpu_layers": 3},
        {"flash_attn": "on"},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "f32"},
        {"ctx_size": 1 << 20},
    ],
)
def test_options_that_cannot_apply_are_refused(folder: Path, options: dict[str, object]) -> None:
    settings = LoadSettings.model_validate({"model": folder, "memory_budget": "2GiB"} | options)
    with pytest.raises(UsageError):
        session.plan(settings)


def test_a_text_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:"
    )
    prepare_refuses(tmp_path)


def test_a_graph_larger_than_any_decoders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec_runtimes.onnx.files.outline.MAX_OUTLINE_BYTES", 1000)
    write_llama(tmp_path, layers=1, hidden=32, vocab=300)
    with refuses(ModelError):
        read_outline(tmp_path / "model.onnx")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_llama(folder, layers=1, hidden=32, vocab=300, external=False)
    return folder


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 60_000))
def test_a_file_that_was_cut_anywhere_is_refused(tiny: Path, cut: int) -> None:
    whole = (tiny / "model.onnx").read_bytes()
    damaged = tiny / "damaged" / "model.onnx"
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(ModelError):
        prepare(damaged.parent)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_byte_ends_in_an_error_or_nowhere(tiny: Path, data: st.DataObject) -> None:
    whole = bytearray((tiny / "model.onnx").read_bytes())
    place = data.draw(st.integers(0, 20_000)) % len(whole)
    whole[place] = data.draw(st.integers(0, 255))
    damaged = tiny / "flipped" / "model.onnx"
    damaged.parent.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (damaged.parent / name).write_bytes((tiny / name).read_bytes())
    damaged.write_bytes(whole)
    with suppress(EdgespecError):
        prepare(damaged.parent)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "genai_config.json"])
def test_a_fifo_beside_the_model_keeps_nobody_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    prepare_refuses(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_device_beside_the_model_is_not_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    prepare_refuses(folder)


def classifier(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            node.output[i] = "scores" if name == "logits" else name
    model.graph.output[0].name = "scores"


def without_past(model: onnx.ModelProto) -> None:
    del model.graph.output[1:]


def with_an_input_more(model: onnx.ModelProto) -> None:
    wanted = helper.make_tensor_value_info("encoder_mask", onnx.TensorProto.INT64, [1])
    model.graph.input.append(wanted)


def without_input(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Identity", [], ["copied"]))


def without_value(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, onnx.NodeProto(op_type="Constant", output=["constant"]))


def without_output(model: onnx.ModelProto) -> None:
    name = model.graph.initializer[0].name
    model.graph.node.insert(0, helper.make_node("Identity", [name], []))


def without_target_type(model: onnx.ModelProto) -> None:
    name = model.graph.initializer[0].name
    model.graph.node.insert(0, helper.make_node("Cast", [name], ["cast"]))


@pytest.mark.parametrize(
    "edit",
    [
        *(classifier, without_past, with_an_input_more),
        *(without_input, without_value, without_output, without_target_type),
    ],
)
def test_a_graph_that_is_no_whole_decoder_is_refused(folder: Path, edit: Change) -> None:
    edit_graph(folder / "model.onnx", edit)
    prepare_refuses(folder)


def test_a_token_without_an_embedding_is_told(folder: Path) -> None:
    """Text was written from the bytes behind the table."""

    def shorten(model: onnx.ModelProto) -> None:
        table = next(one for one in model.graph.initializer if "embed" in one.name)
        table.dims[0] = 20
        for entry in table.external_data:
            if entry.key == "length":
                entry.value = str(20 * 32 * 4)

    edit_graph(folder / "model.onnx", shorten)
    with session.load(LoadSettings(model=folder, ctx_size=64)) as loaded, refuses(ModelError):
        loaded.generate("abc~", max_tokens=3)


@pytest.mark.parametrize("budget", ["8GiB", "auto:1MiB-8GiB"])
def test_a_graph_that_can_be_loaded_and_not_computed_is_an_unusable_model(
    tmp_path: Path, budget: str
) -> None:
    """It was reported as a failure at run time, with exit code 1."""

    name = "model.layers.1.input_layernorm.weight"

    def edit(model: onnx.ModelProto) -> None:
        [norm] = [one for one in model.graph.initializer if one.name == name]
        values = numpy_helper.to_array(norm)
        norm.CopyFrom(numpy_helper.from_array(np.append(values, values[:1]), name))

    folder = write_llama(tmp_path / "fused", vocab=300, fused=True, external=False).parent
    edit_graph(folder / "model.onnx", edit)
    load = LoadSettings(model=folder, memory_budget=budget, ctx_size=64)
    with session.load(load) as loaded, pytest.raises(ModelError) as caught:
        loaded.generate("a", max_tokens=2)
    assert str(caught.value).startswith(f"{folder / 'model.onnx'} cannot be computed: ")


def test_a_lack_of_memory_is_no_fault_of_the_model() -> None:
    refusal = RuntimeError("[ONNXRuntimeError] : 6 : FAIL : Failed to allocate memory for 9 bytes")
    with pytest.raises(EdgespecError) as caught, translated(StopFlag(), "model.onnx"):
        raise refusal
    assert caught.value.exit_code == 1
