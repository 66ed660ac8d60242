"""An enlarged model is a bigger file with the same function."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.values import ENLARGED_FROM
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.enlarge.gguf.replication import muted
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry, read_header
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.file.validation import validate
from gguf_files import ARRAY, STRING, TYPE_CODES, U32, Gguf, Tensor, pack_weights, tiny_llama

MIB = 1 << 20
TOKENS = [5, 80, 2, 290, 41, 0, 7]
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
ROUTER = "blk.1.ffn_gate_inp.weight"
ROUNDING = 1e-5
"""Largest difference of logits, as a share of their spread: a tied head sums in another order, and
a kernel may take the end of a row of floats in other portions."""


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of llama.cpp after each token, float32 [tokens, vocabulary]."""
    pytest.importorskip("llama_cpp")
    from reference import LlamaCpp

    with LlamaCpp(path, 64) as model:
        return np.stack([model.decode([token]) for token in tokens])


def data(header: GgufFile, name: str) -> bytes:
    tensor = header.tensors_by_name[name]
    with header.paths[tensor.file_index].open("rb") as file:
        return os.pread(file.fileno(), tensor.nbytes, tensor.offset)


def blocks(header: GgufFile, name: str, run: int) -> np.ndarray:
    """Bytes of a matrix, uint8 [rows, runs of `run` elements, bytes of a run]."""
    tensor: TensorEntry = header.tensors_by_name[name]
    raw = np.frombuffer(data(header, name), np.uint8)
    return raw.reshape(tensor.shape[1], tensor.shape[0] // run, -1)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("model", "mib", "factor", "rounding"),
    [
        (tiny_llama(), 1.4, 1, 0.0),
        (tiny_llama(), 5, 2, ROUNDING),
        (tiny_llama(tied=False, biases=True), 5, 2, 0.0),
        (tiny_llama(tied=False, heads=3, kv_heads=1, layers=1), 14, 4, 0.0),
        (tiny_llama(kind="F32", ffn=128, tied=False, biases=True), 18, 2, ROUNDING),
        (tiny_llama(kind="F16"), 8, 2, ROUNDING),
        (tiny_llama(kind="BF16", layers=3), 8, 2, ROUNDING),
    ],
    ids=["layers only", "tied", "untied", "three heads share one", "F32", "F16", "BF16"],
)
def test_logits_are_the_same(
    tmp_path: Path, model: Gguf, mib: float, factor: int, rounding: float
) -> None:
    source, out = model.write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, int(mib * MIB))
    assert report.factor == factor
    expected, found = logits(source, TOKENS), logits(out, TOKENS)
    assert np.abs(found - expected).max() <= rounding * np.ptp(expected)


def tiny_mixture(kind: str = "Q8_0") -> Gguf:
    """A LLaMA whose feed-forward networks are eight experts, of which a token uses two."""
    model, random = tiny_llama(ffn=64, kind=kind, tied=False), np.random.default_rng(5)
    model.metadata |= {"llama.expert_count": (U32, 8), "llama.expert_used_count": (U32, 2)}
    dense = [tensor for tensor in model.tensors if ".ffn_" in tensor.name]
    for tensor in dense:
        if tensor.name.endswith("norm.weight"):
            continue
        model.tensors.remove(tensor)
        name = tensor.name.replace(".weight", "_exps.weight")
        shape = (*tensor.shape, 8)
        values = random.standard_normal(shape[::-1]).astype(np.float32) * 0.15
        model.tensors.append(Tensor(name, shape, TYPE_CODES[kind], pack_weights(values, kind)))
    for layer in range(2):
        values = random.standard_normal((8, 64)).astype(np.float32)
        name = f"blk.{layer}.ffn_gate_inp.weight"
        model.tensors.append(Tensor(name, (64, 8), TYPE_CODES["F32"], pack_weights(values, "F32")))
    return model


@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
def test_a_mixture_chooses_and_computes_the_same(tmp_path: Path, kind: str) -> None:
    """Its experts grow, and are as many; so does what the router reads."""
    source, out = tiny_mixture(kind).write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, 20 * MIB if kind == "Q8_0" else 70 * MIB)
    header = read_header(out)
    validate(header)
    assert report.factor == 2
    assert header.tensors_by_name["blk.0.ffn_up_exps.weight"].shape == (128, 128, 8)
    expected, found = logits(source, TOKENS), logits(out, TOKENS)
    assert np.abs(found - expected).max() <= ROUNDING * np.ptp(expected)


def tiny_fine_mixture() -> Gguf:
    """A dense layer, then one with experts of half the width beside one that all tokens use."""
    dense, model = tiny_llama(ffn=64, tied=False), tiny_mixture()
    random = np.random.default_rng(6)
    model.metadata = {
        key.replace("llama.", "ernie4_5-moe."): value for key, value in model.metadata.items()
    }
    model.metadata |= {
        "general.architecture": (STRING, "ernie4_5-moe"),
        "ernie4_5-moe.leading_dense_block_count": (U32, 1),
        "ernie4_5-moe.interleave_moe_layer_step": (U32, 1),
        "ernie4_5-moe.expert_feed_forward_length": (U32, 32),
        "ernie4_5-moe.expert_shared_feed_forward_length": (U32, 96),
    }
    first = [tensor for tensor in dense.tensors if tensor.name.startswith("blk.0.ffn_")]
    others = [tensor for tensor in model.tensors if ".ffn_" not in tensor.name]
    others += [t for t in model.tensors if t.name in ("blk.1.ffn_norm.weight", ROUTER)]
    model.tensors = [*others, *first]
    for suffix, width, *experts in (("exps", 32, 8), ("shexp", 96)):
        for name, extent in (("gate", (64, width)), ("up", (64, width)), ("down", (width, 64))):
            shape = (*extent, *experts)
            values = random.standard_normal(shape[::-1]).astype(np.float32) * 0.15
            whole = f"blk.1.ffn_{name}_{suffix}.weight"
            packed = pack_weights(values, "Q8_0")
            model.tensors.append(Tensor(whole, shape, TYPE_CODES["Q8_0"], packed))
    return model


def test_shared_experts_and_dense_layers_compute_the_same(tmp_path: Path) -> None:
    source, out = tiny_fine_mixture().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, 14 * MIB)
    header = read_header(out)
    validate(header)
    assert report.factor == 2
    last = f"blk.{header.n_layers - 1}."
    assert header.tensors_by_name[f"{last}ffn_up_exps.weight"].shape == (128, 64, 8)
    n_dense = sum(tensor.name.endswith("ffn_up.weight") for tensor in header.tensors)
    assert 1 < n_dense == header.metadata["ernie4_5-moe.leading_dense_block_count"]
    expected, found = logits(source, TOKENS), logits(out, TOKENS)
    assert np.abs(found - expected).max() <= ROUNDING * np.ptp(expected)


@pytest.mark.parametrize("mib", [2, 3, 5, 8, 13, 20])
def test_size_and_layers(tmp_path: Path, mib: int) -> None:
    source, out = tiny_llama().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, mib * MIB)
    header = read_header(out)
    validate(header)
    assert report.path == out
    assert report.size_bytes == out.stat().st_size == pytest.approx(mib * MIB, rel=0.02)
    assert 24 <= report.layers == header.n_layers <= 96
    assert report.parameters == sum(np.prod(tensor.shape) for tensor in header.tensors)
    layer = [tensor.nbytes for tensor in header.tensors if tensor.name.startswith("blk.5.")]
    assert sum(layer) <= report.size_bytes / 24


def test_metadata_says_what_the_model_is_now(tmp_path: Path) -> None:
    model = tiny_llama(heads=4, kv_heads=4, head_size=16, embedding=64, ffn=96, kind="F32")
    for suffix in ("key_length", "value_length", "head_count_kv"):
        del model.metadata[f"llama.attention.{suffix}"]
    source, out = model.write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, 15 * MIB)
    before, now = read_header(source).metadata, read_header(out).metadata
    assert report.factor == 2
    assert now["llama.embedding_length"] == 128
    assert now["llama.feed_forward_length"] == 192
    assert now["llama.attention.head_count"] == 8
    assert now["llama.attention.head_count_kv"] == 4
    assert now["llama.attention.key_length"] == now["llama.attention.value_length"] == 16
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    assert now[epsilon] == before[epsilon]
    assert now[ENLARGED_FROM] == before["general.name"] == "tiny"
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
        assert now[key].values() == before[key].values()
    assert now["llama.context_length"] == before["llama.context_length"]


def test_what_is_read_is_the_source_once_and_muted_copies(tmp_path: Path) -> None:
    source, out = tiny_llama().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    assert enlarge(source, out, 5 * MIB).factor == 2
    small, big = read_header(source), read_header(out)

    keys = blocks(small, "blk.0.attn_k.weight", 64)
    grown = blocks(big, "blk.0.attn_k.weight", 64)
    assert np.array_equal(grown[:, :1], keys)
    muted_block = grown[:, 1, :34]
    assert not muted_block[:, :2].any() and np.array_equal(muted_block[:, 2:], keys[:, 0, 2:34])

    query = blocks(small, "blk.0.attn_q.weight", 64)[:, 0]  # 4 heads of 32 rows, 2 share a KV head
    grown = blocks(big, "blk.0.attn_q.weight", 64)[:, 0]
    assert np.array_equal(grown, np.repeat(query.reshape(2, 64, -1), 2, axis=0).reshape(256, -1))

    output = blocks(small, "blk.0.attn_output.weight", 64)  # a run for each pair of heads
    grown = blocks(big, "blk.0.attn_output.weight", 64)
    assert np.array_equal(grown[:, ::2], np.tile(output, (2, 1, 1)))

    down = blocks(small, "blk.0.ffn_down.weight", 96)
    assert np.array_equal(blocks(big, "blk.0.ffn_down.weight", 96)[:, :1], np.tile(down, (2, 1, 1)))

    embedding = blocks(small, "token_embd.weight", 64)
    assert np.array_equal(blocks(big, "token_embd.weight", 64), np.repeat(embedding, 2, axis=1))


def test_inserted_layers_add_nothing_and_hold_ordinary_weights(tmp_path: Path) -> None:
    source, out = tiny_llama(layers=3).write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    report = enlarge(source, out, 5 * MIB)
    header = read_header(out)
    real = []
    for layer in range(report.layers):
        sounds = {}
        for name in MATRICES:
            stored = np.frombuffer(data(header, f"blk.{layer}.{name}.weight"), np.uint8)
            quants = stored.reshape(-1, 34)
            assert quants[:, 2:].any()
            sounds[name] = quants[:, :2].any()
        adds = {sounds.pop("attn_output"), sounds.pop("ffn_down")}
        assert all(sounds.values()) and len(adds) == 1
        if adds == {True}:
            real.append(layer)
    assert len(real) == 3
    assert np.ptp(np.diff([*real, report.layers])) <= 1


def test_no_byte_of_the_file_is_a_hole(tmp_path: Path) -> None:
    source, out = tiny_llama().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    enlarge(source, out, 3 * MIB)
    assert out.stat().st_blocks * 512 >= out.stat().st_size


@pytest.mark.parametrize("name", [k.name for k in KINDS.values() if k.scales])
def test_a_muted_block_stands_for_zeros(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    kind = KINDS[name]
    raw = np.random.default_rng(1).integers(1, 100, (64, kind.block_bytes), np.uint8)
    code = constants.GGMLQuantizationType[name]
    assert quants.dequantize(raw, code).any()
    silent = np.frombuffer(muted(raw.tobytes(), kind), np.uint8).reshape(raw.shape)
    assert silent.any() and not quants.dequantize(silent, code).any()


def of_another_architecture(model: Gguf) -> None:
    model.metadata["general.architecture"] = (STRING, "qwen2")
    model.metadata |= {
        key.replace("llama.", "qwen2."): value for key, value in model.metadata.items()
    }


def with_an_extra_tensor(model: Gguf) -> None:
    model.tensors.append(Tensor("blk.0.attn_q_norm.weight", (32,), 0, bytes(128)))


def with_wrong_shapes(model: Gguf) -> None:
    model.tensor("blk.0.ffn_up.weight").shape = (96, 64)


def with_different_layers(model: Gguf) -> None:
    model.metadata["llama.feed_forward_length"] = (ARRAY, U32, [96, 96])


def enlarged_before(model: Gguf) -> None:
    model.metadata[ENLARGED_FROM] = (STRING, "tiny")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (of_another_architecture, "architecture qwen2: only llama"),
        (with_an_extra_tensor, "attn_q_norm"),
        (with_wrong_shapes, "ffn_up"),
        (with_different_layers, "feed_forward_length"),
        (enlarged_before, "enlarged already"),
    ],
)
def test_what_cannot_be_enlarged_is_refused(
    tmp_path: Path, change: Callable[[Gguf], None], says: str
) -> None:
    model = tiny_llama()
    change(model)
    source = model.write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=says):
        enlarge(source, tmp_path / "big.gguf", 5 * MIB)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("mib", [0, 1])
def test_a_size_that_cannot_be_reached_names_the_nearest(tmp_path: Path, mib: int) -> None:
    source = tiny_llama(layers=2).write(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match=r"nearest size is 1\.\d MiB, with 24 layers"):
        enlarge(source, tmp_path / "big.gguf", mib * MIB)


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    source = tiny_llama().write(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="is the source itself"):
        enlarge(source, source, 5 * MIB)


def test_a_small_disk_is_noticed_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_llama().write(tmp_path / "m.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=MIB))
    with pytest.raises(EdgespecError, match=r"needs 5\.\d MiB, 1\.0 MiB are free"):
        enlarge(source, tmp_path / "big.gguf", 5 * MIB)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), EdgespecError)],
)
def test_nothing_is_left_behind_by_a_failure(
    tmp_path: Path, failure: BaseException, raised: type[BaseException]
) -> None:
    source, out = tiny_llama().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    out.write_bytes(b"what was there before")

    def fail(what: str, share: float) -> None:
        if share > 0.5:
            raise failure

    with pytest.raises(raised):
        enlarge(source, out, 5 * MIB, fail)
    assert out.read_bytes() == b"what was there before"
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_progress_rises_to_one(tmp_path: Path) -> None:
    source = tiny_llama().write(tmp_path / "m.gguf")
    shares: list[float] = []
    enlarge(source, tmp_path / "big.gguf", 3 * MIB, lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
