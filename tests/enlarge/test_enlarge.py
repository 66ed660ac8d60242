"""An enlarged model is a bigger file with the same function."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgespec.errors import EdgespecError, ModelError
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.gguf.file.details import ENLARGED_FROM
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.validation import validate
from gguf_files import ARRAY, STRING, TYPE_CODES, U32, Gguf, Tensor, pack_weights, tiny_llama
from sentences import refuses

MIB = 1 << 20
TOKENS = [5, 80, 2, 290, 41, 0, 7]


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


def without_layers(model: Gguf) -> None:
    model.tensors = [tensor for tensor in model.tensors if not tensor.name.startswith("blk.")]


def without_attention(model: Gguf) -> None:
    model.tensors = [tensor for tensor in model.tensors if ".attn_" not in tensor.name]
    model.metadata["llama.attention.head_count"] = (U32, 0)


@pytest.mark.parametrize(
    "change",
    [
        without_layers,
        without_attention,
        of_another_architecture,
        with_an_extra_tensor,
        with_wrong_shapes,
        with_different_layers,
        enlarged_before,
    ],
)
def test_what_cannot_be_enlarged_is_refused(tmp_path: Path, change: Callable[[Gguf], None]) -> None:
    model = tiny_llama()
    change(model)
    source = model.write(tmp_path / "m.gguf")
    with refuses(ModelError):
        enlarge(source, tmp_path / "big.gguf", 5 * MIB)
    assert list(tmp_path.iterdir()) == [source]


def test_a_small_disk_is_noticed_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_llama().write(tmp_path / "m.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=MIB))
    with refuses(EdgespecError):
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
