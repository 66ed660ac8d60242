"""Writes tiny GGUF files for tests: a LLaMA with random weights, and what becomes of it when its
header is changed by hand. Knows nothing of the reader under test.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
LAYOUTS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"} | {
    U64: "Q",
    I64: "q",
    F64: "d",
}
TYPE_CODES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "BF16": 30,
} | {"MXFP4": 39}
I64_CODE = 27


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]
    """In ggml's order, the row length first."""
    code: int
    data: bytes
    offset: int | None = None
    """Offset that the header claims; the true one when None."""


@dataclass
class Gguf:
    """A file as a test wants it, right or wrong."""

    metadata: dict[str, tuple] = field(default_factory=dict)
    """(kind, value), or (ARRAY, element kind, elements)."""
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    alignment: int = 32

    def header(self) -> bytes:
        pairs = b"".join(pack_pair(key, *value) for key, value in self.metadata.items())
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))
        described, offset = b"", 0
        for tensor in self.tensors:
            claimed = offset if tensor.offset is None else tensor.offset
            described += pack_string(tensor.name) + struct.pack("<I", len(tensor.shape))
            described += struct.pack(
                f"<{len(tensor.shape)}QIQ", *tensor.shape, tensor.code, claimed
            )
            offset += len(tensor.data) + -len(tensor.data) % self.alignment
        return head + pairs + described

    def content(self) -> bytes:
        weights = b"".join(padded(tensor.data, self.alignment) for tensor in self.tensors)
        return padded(self.header(), self.alignment) + weights

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content())
        return path

    def write_hollow(self, path: Path) -> Path:
        """Weights that are all zero, in a file that takes no room on the disk."""
        head = padded(self.header(), self.alignment)
        n_weights = sum(len(t.data) + -len(t.data) % self.alignment for t in self.tensors)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + n_weights)
        return path

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)


def pack_string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pack_pair(key: str | bytes, kind: int, *value) -> bytes:
    head = pack_string(key) + struct.pack("<I", kind)
    if kind == ARRAY:
        element, items = value
        return head + struct.pack("<IQ", element, len(items)) + pack_items(element, items)
    return head + pack_items(kind, value)


def pack_items(kind: int, items: Iterable) -> bytes:
    if kind == STRING:
        return b"".join(pack_string(item) for item in items)
    return b"".join(struct.pack("<" + LAYOUTS[kind], item) for item in items)


def padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)


def pack_weights(values: np.ndarray, kind: str) -> bytes:
    """float32 [..., row] as any of `TYPE_CODES`."""
    if kind == "F32":
        return values.astype("<f4").tobytes()
    if kind == "F16":
        return values.astype("<f2").tobytes()
    if kind == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if kind != "Q8_0":
        from edgespec_runtimes.gguf.llama.ggml import quantised  # most tests do without

        return quantised(TYPE_CODES[kind], values.reshape(-1, values.shape[-1]).astype("<f4"))
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    quants = np.round(blocks / np.maximum(scale.astype("<f4"), 1e-8)).astype("i1")
    return np.concatenate([scale.view("i1"), quants], axis=1).tobytes()


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    table |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


def byte_level_vocabulary(n_merges: int = 40) -> tuple[list[str], list[str]]:
    """Tokens and merges; token 0 ends the text."""
    characters = byte_characters()
    letters = [characters[byte] for byte in b"etaoinsrhl"]
    merges = [(left, right) for left in letters for right in letters][:n_merges]
    tokens = ["<|endoftext|>", *characters, *(left + right for left, right in merges)]
    return tokens, [f"{left} {right}" for left, right in merges]


def tiny_llama(
    *,
    seed: int = 0,
    embedding: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 32,
    ffn: int = 96,
    tied: bool = True,
    biases: bool = False,
    kind: str = "Q8_0",
    head_kind: str = "",
    n_vocab: int = 297,
    hollow: bool = False,
) -> Gguf:
    """A whole model with random weights and a byte-level vocabulary of 297 tokens, or of more that
    stand for nothing. `head_kind`: that of the output head, if it is another. `hollow`: all weights
    are zero."""
    tokens, merges = byte_level_vocabulary()
    tokens += [f"<filler {number}>" for number in range(n_vocab - len(tokens))]
    random = np.random.default_rng(seed)
    model = Gguf(llama_metadata(tokens, merges, embedding, layers, heads, kv_heads, head_size, ffn))

    def add(name: str, *shape: int, spread: float = 0.15, kind: str = kind) -> None:
        if hollow:
            zeros = bytes(math.prod(shape) // 32 * 34 if kind == "Q8_0" else 4 * math.prod(shape))
            model.tensors.append(Tensor(name, shape, TYPE_CODES[kind], zeros))
            return
        values = random.standard_normal(shape[::-1]).astype(np.float32) * spread
        if name.endswith("norm.weight"):
            values += 1
        model.tensors.append(Tensor(name, shape, TYPE_CODES[kind], pack_weights(values, kind)))

    tied_kind = head_kind if tied and head_kind else kind
    add("token_embd.weight", embedding, len(tokens), spread=1.0, kind=tied_kind)
    for layer in range(layers):
        at = f"blk.{layer}."
        add(at + "attn_norm.weight", embedding, kind="F32")
        for name, width in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            add(at + f"attn_{name}.weight", embedding, width * head_size)
            if biases:
                add(at + f"attn_{name}.bias", width * head_size, kind="F32")
        add(at + "attn_output.weight", heads * head_size, embedding)
        add(at + "ffn_norm.weight", embedding, kind="F32")
        add(at + "ffn_gate.weight", embedding, ffn)
        add(at + "ffn_up.weight", embedding, ffn)
        add(at + "ffn_down.weight", ffn, embedding)
        if biases:
            add(at + "attn_output.bias", embedding, kind="F32")
            add(at + "ffn_gate.bias", ffn, kind="F32")
            add(at + "ffn_up.bias", ffn, kind="F32")
            add(at + "ffn_down.bias", embedding, kind="F32")
    add("output_norm.weight", embedding, kind="F32")
    if not tied:
        add("output.weight", embedding, len(tokens), kind=head_kind or kind)
    return model


def tiny_eagle3(
    *,
    seed: int = 7,
    layers: tuple[int, ...] = (1, 2, 3),
    target_embedding: int = 64,
    embedding: int = 64,
    heads: int = 2,
    kv_heads: int = 1,
    head_size: int = 32,
    ffn: int = 96,
    n_draft_vocab: int | None = 64,
    kind: str = "F32",
    norm_before_residual: bool = False,
    norm_before_fc: bool = False,
) -> Gguf:
    """An EAGLE-3 head for `tiny_llama` as llama.cpp's converter writes them, with random weights.
    It guesses `n_draft_vocab` tokens; None: all of them, without a table."""
    tokens, merges = byte_level_vocabulary()
    random = np.random.default_rng(seed)
    plain = llama_metadata(tokens, merges, embedding, 1, heads, kv_heads, head_size, ffn)
    model = Gguf({key.replace("llama.", "eagle3."): value for key, value in plain.items()})
    model.metadata |= {
        "general.architecture": (STRING, "eagle3"),
        "general.name": (STRING, "tiny head"),
        "eagle3.target_layers": (ARRAY, I32, list(layers)),
        "eagle3.target_hidden_size": (U32, target_embedding),
        "eagle3.norm_before_residual": (BOOL, norm_before_residual),
        "eagle3.norm_before_fc": (BOOL, norm_before_fc),
    }

    def add(name: str, *shape: int, spread: float = 0.15, kind: str = kind) -> None:
        values = random.standard_normal(shape[::-1]).astype(np.float32) * spread
        if "norm" in name:
            kind, values = "F32", values + 1
        model.tensors.append(Tensor(name, shape, TYPE_CODES[kind], pack_weights(values, kind)))

    n_fused, at = len(layers) * target_embedding, "blk.0."
    if n_draft_vocab is not None:
        table = np.sort(random.permutation(len(tokens))[:n_draft_vocab]).astype("<i8")
        model.tensors.append(Tensor("d2t", (n_draft_vocab,), I64_CODE, table.tobytes()))
    add("fc.weight", n_fused, embedding)
    if norm_before_fc:
        add("enc.output_norm.weight", n_fused)
    add("token_embd.weight", embedding, len(tokens), spread=1.0)
    add(at + "attn_norm.weight", embedding)
    add(at + "attn_norm_2.weight", embedding)
    for name, width in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        add(at + f"attn_{name}.weight", 2 * embedding, width * head_size)
    add(at + "attn_output.weight", heads * head_size, embedding)
    add(at + "ffn_norm.weight", embedding)
    add(at + "ffn_gate.weight", embedding, ffn)
    add(at + "ffn_up.weight", embedding, ffn)
    add(at + "ffn_down.weight", ffn, embedding)
    add("output_norm.weight", embedding)
    add("output.weight", embedding, n_draft_vocab or len(tokens))
    return model


def tiny_dflash(
    *,
    layers: tuple[int, ...] = (1, 2, 3),
    embedding: int = 64,
    n_layers: int = 2,
    heads: int = 2,
    kv_heads: int = 1,
    head_size: int = 32,
    block_size: int = 8,
    n_draft_vocab: int | None = None,
    n_candidates: int = 0,
    begins: bool | None = None,
) -> Gguf:
    """A DFlash head for `tiny_llama` as llama.cpp's converter writes them, with random weights. Its
    mask is the last token; it guesses `n_draft_vocab` tokens, or all of them without a table. With
    candidates it is a DFlash2 head; a DSpark head if it is said whether the last token guesses."""
    tokens, merges = byte_level_vocabulary()
    random = np.random.default_rng(9)
    plain = llama_metadata(tokens, merges, embedding, n_layers, heads, kv_heads, head_size, 96)
    model = Gguf({key.replace("llama.", "dflash."): value for key, value in plain.items()})
    model.metadata |= {
        "general.architecture": (STRING, "dflash"),
        "general.name": (STRING, "tiny block head"),
        "dflash.target_layers": (ARRAY, I32, list(layers)),
        "dflash.context_length": (U32, 128 + block_size),
        "dflash.block_size": (U32, block_size),
        "tokenizer.ggml.mask_token_id": (U32, len(tokens) - 1),
    }

    def add(name: str, *shape: int, spread: float = 0.15) -> None:
        values = random.standard_normal(shape[::-1]).astype(np.float32) * spread
        if "norm" in name:
            values += 1
        model.tensors.append(Tensor(name, shape, 0, pack_weights(values, "F32")))

    if n_draft_vocab is not None:
        table = np.sort(random.permutation(len(tokens))[:n_draft_vocab]).astype("<i8")
        model.tensors.append(Tensor("d2t", (n_draft_vocab,), I64_CODE, table.tobytes()))
    add("fc.weight", len(layers) * embedding, embedding)
    add("enc.output_norm.weight", embedding)
    add("token_embd.weight", embedding, len(tokens), spread=1.0)
    for layer in range(n_layers):
        at = f"blk.{layer}."
        add(at + "attn_norm.weight", embedding)
        for name, width in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            add(at + f"attn_{name}.weight", embedding, width * head_size)
        add(at + "attn_q_norm.weight", head_size)
        add(at + "attn_k_norm.weight", head_size)
        add(at + "attn_output.weight", heads * head_size, embedding)
        add(at + "ffn_norm.weight", embedding)
        add(at + "ffn_gate.weight", embedding, 96)
        add(at + "ffn_up.weight", embedding, 96)
        add(at + "ffn_down.weight", 96, embedding)
    add("output_norm.weight", embedding)
    add("output.weight", embedding, n_draft_vocab or len(tokens))
    if n_candidates:
        kernel, group, rank = 4, 16, 8
        for name, value in (
            ("conv_kernel_size", kernel),
            ("conv_group_size", group),
            ("selector_rank", rank),
            ("selector_top_k", n_candidates),
        ):
            model.metadata[f"dflash.{name}"] = (U32, value)
        for layer in range(n_layers):
            for part in ("attn", "ffn"):
                add(f"blk.{layer}.{part}_conv_base", embedding, kernel, 2)
                n_projected = 2 * kernel * embedding // group
                add(f"blk.{layer}.{part}_conv_proj.weight", embedding, n_projected)
        add("selector_predecessor.weight", rank, len(tokens), spread=1.0)
        add("selector_successor.weight", rank, len(tokens), spread=1.0)
        add("selector_hidden.weight", embedding, rank, spread=1.0)
    if begins is not None:
        model.metadata["dflash.sample_from_anchor"] = (BOOL, begins)
        add("markov_w1.weight", 16, len(tokens), spread=1.0)
        add("markov_w2.weight", 16, n_draft_vocab or len(tokens), spread=1.0)
        add("conf_proj.weight", embedding + 16, 1)
    return model


def repeating_pair() -> tuple[Gguf, Gguf]:
    """A target that repeats the last token, and a DFlash head that knows it.

    The target's layers add nothing to the token's embedding, which is its output, too. The head's
    masks look at the block's first token, known by the sign of one of its values, and hand on its
    embedding."""
    target = tiny_llama(layers=4, tied=True, kind="F32")
    head = tiny_dflash(n_layers=1, heads=1, kv_heads=1, head_size=64)
    shared, marked = target.tensor("token_embd.weight"), 63
    table = np.frombuffer(shared.data, "<f4").reshape(-1, 64).copy()
    table[:, marked], table[-1] = 4.0, 0.0
    table[-1, marked] = -4.0
    shared.data = table.tobytes()
    own, ones, mark = np.eye(64, dtype="<f4"), np.ones(64, "<f4"), np.zeros((64, 64), "<f4")
    mark[marked, marked] = 1.0
    for layer in range(4):
        for name in (f"blk.{layer}.attn_output.weight", f"blk.{layer}.ffn_down.weight"):
            target.tensor(name).data = bytes(len(target.tensor(name).data))
    values = {
        "fc.weight": np.zeros((64, 192), "<f4"),
        "token_embd.weight": table,
        "output.weight": table,
        "output_norm.weight": np.frombuffer(target.tensor("output_norm.weight").data, "<f4"),
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": -mark,
        "blk.0.attn_k.weight": mark,
        "blk.0.attn_v.weight": own - mark,
        "blk.0.attn_output.weight": 50 * own,
        "blk.0.attn_q_norm.weight": ones,
        "blk.0.attn_k_norm.weight": ones,
        "blk.0.ffn_down.weight": np.zeros((64, 96), "<f4"),
    }
    for name, weights in values.items():
        head.tensor(name).data = weights.astype("<f4").tobytes()
    return target, head


def borrowing(head: Gguf, target: Gguf, *names: str) -> Gguf:
    """The head's file without its matrices `names`; the whole head gets the target's instead."""
    lent = {tensor.name: tensor for tensor in target.tensors}
    for name in names:
        head.tensor(name).data = lent.get(name, lent["token_embd.weight"]).data
    return Gguf(head.metadata, [tensor for tensor in head.tensors if tensor.name not in names])


def without_texts(head: Gguf, made_for: str) -> Gguf:
    """The head's file without a tokenizer, for the vocabulary with this fingerprint."""
    kept = {key: value for key, value in head.metadata.items() if "tokenizer." not in key}
    n_vocab = len(head.metadata["tokenizer.ggml.tokens"][2])
    kept |= {
        "tokenizer.ggml.model": (STRING, "none"),
        "eagle3.vocab_size": (U32, n_vocab),
        "edgespec.draft.vocabulary": (STRING, made_for),
    }
    return Gguf(kept, head.tensors)


def llama_metadata(
    tokens: list[str],
    merges: list[str],
    embedding: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    ffn: int,
) -> dict[str, tuple]:
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "tiny"),
        "llama.context_length": (U32, 128),
        "llama.embedding_length": (U32, embedding),
        "llama.block_count": (U32, layers),
        "llama.feed_forward_length": (U32, ffn),
        "llama.attention.head_count": (U32, heads),
        "llama.attention.head_count_kv": (U32, kv_heads),
        "llama.attention.key_length": (U32, head_size),
        "llama.attention.value_length": (U32, head_size),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.dimension_count": (U32, head_size),
        "llama.rope.freq_base": (F32, 10000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "qwen2"),
        "tokenizer.ggml.tokens": (ARRAY, STRING, tokens),
        "tokenizer.ggml.token_type": (ARRAY, I32, [3] + [1] * (len(tokens) - 1)),
        "tokenizer.ggml.merges": (ARRAY, STRING, merges),
        "tokenizer.ggml.bos_token_id": (U32, 0),
        "tokenizer.ggml.eos_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
    }


def predictable_pair(kind: str = "F32") -> tuple[Gguf, Gguf]:
    """A target whose next token depends on the last one alone, and a head that knows it.

    The target's layers add nothing to the token's embedding; the head looks at its own token alone
    and hands its embedding to the target's output matrix."""
    target = tiny_llama(layers=4, heads=1, kv_heads=1, head_size=64, tied=False, kind=kind)
    head = tiny_eagle3(
        heads=1, kv_heads=1, head_size=64, n_draft_vocab=None, norm_before_residual=True
    )
    for layer in range(4):
        for name in (f"blk.{layer}.attn_output.weight", f"blk.{layer}.ffn_down.weight"):
            tensor = target.tensor(name)
            tensor.data = bytes(len(tensor.data))
    for name in ("fc.weight", "blk.0.attn_norm_2.weight", "blk.0.ffn_down.weight"):
        head.tensor(name).data = bytes(len(head.tensor(name).data))
    for name in ("token_embd.weight", "output.weight", "output_norm.weight"):
        head.tensor(name).data = target.tensor(name).data
    own, ones = np.eye(64, dtype="<f4"), np.ones(64, "<f4")
    left = np.concatenate([own, 0 * own], axis=1)
    head.tensor("blk.0.attn_norm.weight").data = ones.tobytes()
    for name, scale in (("q", 4), ("k", 4), ("v", 1)):
        head.tensor(f"blk.0.attn_{name}.weight").data = (scale * left).astype("<f4").tobytes()
    head.tensor("blk.0.attn_output.weight").data = own.tobytes()
    return target, head
