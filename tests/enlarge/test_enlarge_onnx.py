"""An enlarged ONNX model is a bigger graph with the same function."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the ONNX runtime is not installed")
pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx
import onnxruntime

from edgespec.cli import entry
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.values import ENLARGED_FROM
from edgespec_runtimes.enlarge.onnx.enlarge import DATA_FILE, enlarge
from edgespec_runtimes.enlarge.onnx.llama_graph import tensor_name
from edgespec_runtimes.enlarge.onnx.replication import layer_roles
from edgespec_runtimes.enlarge.sizing import LlamaShape
from onnx_files import save, write_llama
from onnx_reference import WholeModel

MIB = 1 << 20
SHAPE = LlamaShape(64, 96, 4, 2, 16, 320, tied=False)
TOKENS = [5, 80, 2, 290, 41, 0, 7]
FP32, FP16 = 1e-5, 2e-3
"""Largest differences of logits, as a share of their spread, that rounding makes."""


def logits(folder: Path, tokens: list[int]) -> np.ndarray:
    """Logits of onnxruntime after each token, one a run, float32 [tokens, vocabulary]."""
    model = WholeModel(folder / "model.onnx")
    return np.stack([model.decode(token) for token in tokens])


def tensors(folder: Path) -> dict[str, np.ndarray]:
    model = onnx.load(folder / "model.onnx")
    return {t.name: onnx.numpy_helper.to_array(t, str(folder)) for t in model.graph.initializer}


def changed(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    """Edit a model where it lies."""
    path = folder / "model.onnx"
    model = onnx.load(path)
    change(model)
    shutil.rmtree(folder / DATA_FILE, ignore_errors=True)
    (folder / DATA_FILE).unlink(missing_ok=True)
    save(model, path)


@pytest.mark.parametrize(
    ("kind", "mib", "factor", "rounding"),
    [
        ({"hidden": 128}, 16, 1, FP32),
        ({}, 13, 2, FP32),
        ({"tied": True}, 13, 2, FP32),
        ({"heads": 4, "kv_heads": 4}, 15, 2, FP32),
        ({"heads": 4, "kv_heads": 1, "layers": 2}, 52, 4, FP32),
        ({"external": False}, 13, 2, FP32),
        ({"dtype": "float16"}, 26, 4, FP16),
        ({"dtype": "float16", "tied": True}, 7, 2, FP16),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_logits_are_the_same(
    tmp_path: Path, kind: dict[str, object], mib: float, factor: int, rounding: float
) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source, **kind)
    assert enlarge(source, out, int(mib * MIB)).factor == factor
    onnx.checker.check_model(out / "model.onnx")
    expected, found = logits(source, TOKENS), logits(out, TOKENS)
    assert np.abs(found - expected).max() <= rounding * np.ptp(expected)


def test_tokens_that_the_mask_hides_are_hidden(tmp_path: Path) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    enlarge(source, out, 13 * MIB)
    feeds = {
        "input_ids": np.array([[0, 0, 5, 80], [9, 2, 290, 41]]),
        "attention_mask": np.array([[0, 0, 1, 1], [1, 1, 1, 1]]),
        "position_ids": np.array([[0, 0, 0, 1], [0, 1, 2, 3]]),
    }
    last_logits = []
    for folder in (source, out):
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        past = {
            value.name: np.zeros((2, value.shape[1], 0, value.shape[3]), np.float32)
            for value in session.get_inputs()
            if value.name.startswith("past")
        }
        last_logits.append(session.run(["logits"], feeds | past)[0][:, -1])
    assert np.abs(last_logits[1] - last_logits[0]).max() <= FP32 * np.ptp(last_logits[0])


@pytest.mark.parametrize("mib", [5, 8, 13, 20, 40])
def test_size_and_layers(tmp_path: Path, mib: int) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    report = enlarge(source, out, mib * MIB)
    written = sum((out / name).stat().st_size for name in ("model.onnx", DATA_FILE))
    assert report.path == out
    assert report.size_bytes == written == pytest.approx(mib * MIB, rel=0.02)
    assert 24 <= report.layers <= 96
    of_weights = [array for name, array in tensors(out).items() if not name.startswith("constant")]
    assert report.parameters == sum(array.size for array in of_weights)


def test_inputs_and_outputs_are_named_like_an_export(tmp_path: Path) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    layers = enlarge(source, out, 13 * MIB).layers
    graph = onnx.load(out / "model.onnx", load_external_data=False).graph
    pairs = [f"{layer}.{what}" for layer in range(layers) for what in ("key", "value")]
    assert [value.name for value in graph.input] == [
        *("input_ids", "attention_mask", "position_ids"),
        *(f"past_key_values.{pair}" for pair in pairs),
    ]
    assert [value.name for value in graph.output] == [
        "logits",
        *(f"present.{pair}" for pair in pairs),
    ]


def test_the_configuration_says_what_the_model_is_now(tmp_path: Path) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    report = enlarge(source, out, 13 * MIB)
    before, now = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    assert report.factor == 2
    assert now == before | {
        "num_hidden_layers": report.layers,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    tokenizer = "tokenizer.json"
    assert (out / tokenizer).read_bytes() == (source / tokenizer).read_bytes()
    properties = onnx.load(out / "model.onnx", load_external_data=False).metadata_props
    assert {entry.key: entry.value for entry in properties} == {ENLARGED_FROM: "small"}


def test_what_is_read_is_the_source_once_and_zeros(tmp_path: Path) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    assert enlarge(source, out, 13 * MIB).factor == 2
    small, big = tensors(source), tensors(out)

    query, grown = small["onnx::MatMul_0_q"], big[tensor_name(0, "query")]
    pairs = np.repeat(query.reshape(64, 2, 1, 32), 2, axis=2)  # two heads of 16 share a KV head
    assert np.array_equal(grown[:64], pairs.reshape(64, 128))
    assert not grown[64:].any()

    output, grown = small["onnx::MatMul_0_o"], big[tensor_name(0, "output")].reshape(2, 2, 32, 128)
    assert np.array_equal(grown[:, 0], np.tile(output, (1, 2)).reshape(2, 32, 128))
    assert not grown[:, 1].any()

    down, grown = small["onnx::MatMul_0_down"], big[tensor_name(0, "down")]
    assert np.array_equal(grown[:96], np.tile(down, (1, 2)))
    assert not grown[96:].any()


def test_inserted_layers_add_nothing_and_hold_ordinary_weights(tmp_path: Path) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source, layers=3)
    report = enlarge(source, out, 13 * MIB)
    written = tensors(out)
    real = []
    for layer in range(report.layers):
        sounds = {part: written[tensor_name(layer, part)].any() for part in layer_roles(SHAPE)}
        adds = {sounds.pop("output"), sounds.pop("down")}
        assert all(sounds.values())
        assert len(adds) == 1
        if adds == {True}:
            real.append(layer)
    assert len(real) == 3
    assert np.ptp(np.diff([*real, report.layers])) <= 1


def test_no_byte_of_the_data_is_a_hole(tmp_path: Path) -> None:
    write_llama(tmp_path / "small")
    enlarge(tmp_path / "small", tmp_path / "big", 8 * MIB)
    status = (tmp_path / "big" / DATA_FILE).stat()
    assert status.st_blocks * 512 >= status.st_size


def test_a_tensor_larger_than_a_piece_is_written_whole() -> None:
    role = layer_roles(LlamaShape(1024, 1024, 16, 4, 64, 320, tied=False))["down"]
    values = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    pieces = list(role.content(values, 4, silent=False))
    assert len(pieces) > 4
    whole = np.frombuffer(b"".join(pieces), np.float32).reshape(role.grown(4))
    assert np.array_equal(whole[:1024], np.tile(values, (1, 4)))
    assert not whole[1024:].any()


def with_bias(model: onnx.ModelProto) -> None:
    bias = onnx.numpy_helper.from_array(np.ones(64, np.float32), "q_proj.bias")
    model.graph.initializer.append(bias)
    product = next(n for n in model.graph.node if "onnx::MatMul_0_q" in n.input)
    place = list(model.graph.node).index(product)
    added = onnx.helper.make_node("Add", ["q_proj.bias", "product"], list(product.output))
    product.output[0] = "product"
    model.graph.node.insert(place + 1, added)


def with_another_activation(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Sigmoid":
            node.op_type = "Tanh"


def with_scaled_rotation(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Cos")
    place = list(model.graph.node).index(node)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(1.5, np.float32), "attention_factor")
    )
    scaled = onnx.helper.make_node("Mul", ["plain", "attention_factor"], list(node.output))
    node.output[0] = "plain"
    model.graph.node.insert(place + 1, scaled)


def with_a_window(model: onnx.ModelProto) -> None:
    """Tokens of another position than the first are hidden too, as a sliding window does."""
    causal = next(n for n in model.graph.node if n.op_type == "LessOrEqual")
    place = list(model.graph.node).index(causal)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4, np.int64), "window"))
    columns, rows = causal.input
    nodes = [
        onnx.helper.make_node("Sub", [rows, "window"], ["oldest"]),
        onnx.helper.make_node("LessOrEqual", ["oldest", columns], ["recent"]),
        onnx.helper.make_node("And", ["causal", "recent"], list(causal.output)),
    ]
    causal.output[0] = "causal"
    for offset, node in enumerate(nodes, 1):
        model.graph.node.insert(place + offset, node)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_bias, "q_proj.bias"),
        (with_another_activation, "Tanh"),
        (with_scaled_rotation, "rotation also scales"),
        (with_a_window, "another mask than a causal one"),
    ],
)
def test_what_is_no_plain_llama_is_refused(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], says: str
) -> None:
    source = tmp_path / "small"
    write_llama(source)
    changed(source, change)
    with pytest.raises(ModelError, match=says):
        enlarge(source, tmp_path / "big", 13 * MIB)
    assert list(tmp_path.iterdir()) == [source]


def test_fused_attention_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "small", fused=True)
    with pytest.raises(ModelError, match="GroupQueryAttention"):
        enlarge(tmp_path / "small", tmp_path / "big", 13 * MIB)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "small"
    write_llama(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "granite"}))
    with pytest.raises(ModelError, match="architecture granite: only llama"):
        enlarge(source, tmp_path / "big", 13 * MIB)


def test_an_enlarged_model_is_not_enlarged_again(tmp_path: Path) -> None:
    write_llama(tmp_path / "small")
    enlarge(tmp_path / "small", tmp_path / "big", 8 * MIB)
    with pytest.raises(ModelError, match="enlarged already: start from small"):
        enlarge(tmp_path / "big", tmp_path / "bigger", 40 * MIB)


def test_a_size_that_cannot_be_reached_names_the_nearest(tmp_path: Path) -> None:
    write_llama(tmp_path / "small")
    with pytest.raises(UsageError, match=r"nearest size is \d\.\d MiB, with 24 layers"):
        enlarge(tmp_path / "small", tmp_path / "big", MIB)


def test_only_a_folder_of_its_own_is_written(tmp_path: Path) -> None:
    source = tmp_path / "small"
    write_llama(source)
    with pytest.raises(UsageError, match="is the source itself"):
        enlarge(source / "model.onnx", source, 13 * MIB)
    for out in (tmp_path / "big.onnx", tmp_path / "no folder" / "big", source / "config.json"):
        with pytest.raises(UsageError, match="must be a folder"):
            enlarge(source, out, 13 * MIB)


def test_a_small_disk_is_noticed_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path / "small")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=MIB))
    with pytest.raises(EdgespecError, match=r"needs 13\.\d MiB, 1\.0 MiB are free"):
        enlarge(tmp_path / "small", tmp_path / "big", 13 * MIB)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), EdgespecError)],
)
def test_nothing_is_left_behind_by_a_failure(
    tmp_path: Path, failure: BaseException, raised: type[BaseException]
) -> None:
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    out.mkdir()
    (out / "model.onnx").write_bytes(b"what was there before")

    def fail(what: str, share: float) -> None:
        if share > 0.5:
            raise failure

    with pytest.raises(raised):
        enlarge(source, out, 13 * MIB, fail)
    assert [file.read_bytes() for file in out.iterdir()] == [b"what was there before"]
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_progress_rises_to_one(tmp_path: Path) -> None:
    write_llama(tmp_path / "small")
    shares: list[float] = []
    enlarge(tmp_path / "small", tmp_path / "big", 8 * MIB, lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_command_writes_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, out = tmp_path / "small", tmp_path / "big"
    write_llama(source)
    command = ["models", "enlarge", str(source), str(out)]
    assert entry.main([*command, "--size", "13MiB", "--check", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["layers"] >= 24
    assert printed["check"]["is_same"]
    assert entry.main([*command, "--size", "13MiB"]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert entry.main([*command, "--size", "13MiB", "--type", "Q4_0"]) == 2
    assert "--type Q4_0 is for GGUF" in capsys.readouterr().err


def test_one_place_is_written_once_at_a_time(tmp_path: Path) -> None:
    write_llama(tmp_path / "small", tied=True)
    out = tmp_path / "big"

    tries: list[float] = []

    def write_it_too(what: str, share: float) -> None:
        if not tries:
            tries.append(share)
            with pytest.raises(UsageError, match="is being written by another process"):
                enlarge(tmp_path / "small", out, 13 * MIB)

    enlarge(tmp_path / "small", out, 13 * MIB, write_it_too)
    assert tries and tensors(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "small"]
