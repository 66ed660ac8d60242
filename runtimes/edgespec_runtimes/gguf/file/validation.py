"""Refuses models on which llama.cpp would crash instead of reporting an error.

Knows llama.cpp's unchecked assumptions about metadata, tensors and vocabulary; reads only the
header. Errors that llama.cpp itself reports (a missing tensor, a wrong shape) are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.errors import ModelError, setting
from edgespec_runtimes.gguf.file.architectures import Trait, check_embeds, check_purpose, has
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, ValueType
from edgespec_runtimes.gguf.file.heads import is_head
from edgespec_runtimes.gguf.file.layout import NONE

MAX_LAYERS = 512
"""Most layers that llama.cpp supports."""
MAX_EXPERTS = 1024
MAX_CONTEXT, MAX_TOKENS = 1 << 30, 1 << 20
IMPLIED_TOKEN = 11
"""Token that llama.cpp prepends to a text if a byte-level vocabulary does not define one."""
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
TOKENIZERS = ("gpt2", "llama", "gemma4", "rwkv", "plamo2", "hybriddna", "whitespace")
ENCODERS_TOKENIZERS = ("bert", "t5")
"""Further tokenizers of embedding models."""

INDEX_TABLES = ("tid2eid", "d2t")
"""Lookup tables, which may have integer types."""
VECTORS = (
    "norm.weight",
    ".bias",
    ".scale",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
"""Tensors of elementwise operations, which are computed only in F32."""


BYTE_SPELLINGS: dict[str, Callable[[int], set[bytes]]] = {
    "llama": lambda byte: {b"<0x%02X>" % byte, bytes([byte])},
    "plamo2": lambda byte: {b"<0x%02X>" % byte},
    "rwkv": lambda byte: {repr(bytes([byte])).encode()[2:-1], b"\\x%02x" % byte},
}
"""Spellings of byte tokens, for tokenizers that need a token for every byte."""


def validate(header: GgufFile, as_draft: bool = False, embeds: bool = False) -> None:
    """Raise ModelError for a model on which llama.cpp would crash. Only a draft may be a head or
    have no tokenizer; with `embeds`, the model must turn texts into vectors instead of writing
    them."""
    if not header.tensors:
        raise ModelError(f"{header.path} holds no tensors: it is a vocabulary or an empty shell")
    if embeds:
        check_embeds(header)
    elif not (as_draft and is_head(header)):
        check_purpose(header)
    _check_depth(header)
    _check_experts(header)
    if has(header, Trait.TRUSTS_EXPERTS):
        _check_whole_experts(header)
    _check_attention(header)
    _check_rotation(header)
    for suffix in EPSILONS:
        value = header.metadata.get(header.key(suffix))
        if isinstance(value, float) and not value >= 0:
            raise _wrong(header, f"{suffix} is {value}")
    _check_tensor_types(header)
    if not header.made_for:
        _check_vocabulary(header, (*TOKENIZERS, *ENCODERS_TOKENIZERS) if embeds else TOKENIZERS)
    elif not as_draft:
        raise ModelError(
            f"{header.path} is a draft without a tokenizer, made for a target: name the target "
            f"with {setting.model}, and this one with {setting.draft}"
        )
    else:  # llama.cpp makes a table of so many tokens before it looks at a tensor
        _count(header, header.key("vocab_size"), 1, MAX_TOKENS, default=1)


def _check_depth(header: GgufFile) -> None:
    layers = _count(header, header.key("block_count"), 1, MAX_LAYERS)
    _count(header, header.key("nextn_predict_layers"), 0, layers - 1, default=0)
    _count(header, header.key("context_length"), 1, MAX_CONTEXT)
    _count(header, header.key("embedding_length"), 1, 1 << 24)
    window = header.key("attention.sliding_window")
    if not isinstance(header.metadata.get(window), GgufArray):
        _count(header, window, 0, MAX_CONTEXT, default=0)


def _check_experts(header: GgufFile) -> None:
    experts = _count(header, header.key("expert_count"), 0, MAX_EXPERTS, default=0)
    used = _per_layer(header, header.key("expert_used_count"), default=0)
    groups = _count(header, header.key("expert_group_count"), 0, MAX_EXPERTS, default=0)
    groups_used = _count(header, header.key("expert_group_used_count"), 0, MAX_EXPERTS, default=0)
    if max(used) > experts or (experts and not max(used)):
        raise _wrong(header, f"{max(used)} of {experts} experts are used")
    if has(header, Trait.PLAIN) and len(set(used)) > 1:
        raise _wrong(header, f"its layers use different numbers of experts, {sorted(set(used))}")
    if groups and groups >= experts:
        raise _wrong(header, f"{experts} experts are in {groups} groups")
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise _wrong(header, f"{experts} experts, {groups_used} of {groups} groups used")


def _check_whole_experts(header: GgufFile) -> None:
    """Check that layers that choose experts have all of their matrices."""
    pair, shared = {"ffn_gate_exps", "ffn_up_exps"}, {"ffn_up_shexp", "ffn_down_shexp"}
    found = [name.split(".") for name in header.tensors_by_name if name.endswith(".weight")]
    for layer in range(header.n_layers):
        here = {parts[2] for parts in found if parts[:2] == ["blk", str(layer)]}
        wanted = {"ffn_down_exps", *shared, *({"ffn_gate_up_exps"} & here or pair)}
        if "ffn_gate_inp" in here and (missing := wanted - here):
            raise _wrong(header, f"layer {layer} has no {min(missing)}")


def _check_attention(header: GgufFile) -> None:
    """Check heads and KV heads of attention layers: not zero, and divisible into groups."""
    heads = _per_layer(header, header.key("attention.head_count"), default=0)
    kv_heads = _per_layer(header, header.key("attention.head_count_kv"), default=None) or heads
    for layer, (n_heads, n_kv_heads) in enumerate(zip(heads, kv_heads, strict=True)):
        names = (f"blk.{layer}.attn_q.weight", f"blk.{layer}.attn_qkv.weight")
        if not any(name in header.tensors_by_name for name in names):
            continue
        if not n_kv_heads and has(header, Trait.LINEAR):
            continue
        if n_heads < 1 or n_kv_heads < 1 or n_heads % n_kv_heads:
            raise _wrong(
                header, f"layer {layer} has {n_heads} heads, which share {n_kv_heads} KV heads"
            )
        key_norm = f"blk.{layer}.attn_k_norm.weight"
        is_alike = has(header, Trait.HEADS_ALIKE) and key_norm in header.tensors_by_name
        if is_alike and n_heads != n_kv_heads:
            raise _wrong(header, f"layer {layer} norms {n_kv_heads} KV heads like {n_heads}")
    if has(header, Trait.PLAIN) and len(set(zip(heads, kv_heads, strict=True))) > 1:
        _check_heads_fit(header, heads, kv_heads)


def _check_heads_fit(header: GgufFile, heads: list[int], kv_heads: list[int]) -> None:
    """Check that projections fit the heads, which llama.cpp does not if layers differ."""
    for layer, (n_heads, n_kv_heads) in enumerate(zip(heads, kv_heads, strict=True)):
        for name, n_rows in (("q", n_heads), ("k", n_kv_heads), ("v", n_kv_heads)):
            tensor = header.tensors_by_name.get(f"blk.{layer}.attn_{name}.weight")
            if tensor is not None and tensor.shape[1:] != (n_rows * _key_size(header),):
                raise _wrong(
                    header, f"{tensor.name} has {tensor.shape[-1]} rows for {n_rows} heads"
                )


def _check_rotation(header: GgufFile) -> None:
    scaling = header.text(header.key("rope.scaling.type"), "linear")
    if scaling not in ROPE_SCALINGS:
        raise _wrong(header, f"rope.scaling.type {scaling!r} is none of {', '.join(ROPE_SCALINGS)}")
    if not (key_size := _key_size(header)):
        return
    least = 2 * has(header, Trait.PLAIN)
    rotated = _count(header, header.key("rope.dimension_count"), least, key_size, default=key_size)
    if rotated % 2:
        raise _wrong(header, f"rope.dimension_count {rotated} is odd")


def _key_size(header: GgufFile) -> int:
    """Elements of a key; 0 for a model without attention."""
    n_heads = _per_layer(header, header.key("attention.head_count"), default=0)[0]
    if n_heads < 1:
        return 0
    share = header.embedding_length // n_heads
    return _count(header, header.key("attention.key_length"), 1, 1 << 16, default=share)


def _check_tensor_types(header: GgufFile) -> None:
    for tensor in header.tensors:
        kind, why = tensor.type, ""
        if tensor.name.endswith(VECTORS) and kind.name != "F32":
            why = "it must be F32"
        elif kind.kernels is NONE and not any(table in tensor.name for table in INDEX_TABLES):
            why = "there is no kernel for such weights"
        if why:
            raise ModelError(f"{header.path}: {tensor.name} is stored as {kind.name}: {why}")


def _check_vocabulary(header: GgufFile, tokenizers: Sequence[str]) -> None:
    model = header.text("tokenizer.ggml.model")
    if model not in tokenizers:
        raise ModelError(
            f"{header.path}: tokenizer {model!r} is not supported, only "
            f"{', '.join(tokenizers)}: name another model"
        )
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, GgufArray) or tokens.kind is not ValueType.STRING:
        raise _wrong(header, "tokenizer.ggml.tokens is not an array of strings")
    if len(tokens) > MAX_TOKENS:
        raise _wrong(header, f"the vocabulary has {len(tokens):,} tokens")
    texts = [
        text or b"[EMPTY_%d]" % token for token, text in enumerate(tokens.strings())
    ]  # llama.cpp's name for an empty token
    known = set(texts)
    if len(known) != len(texts):
        raise _wrong(header, "the vocabulary holds a token twice")
    if len(texts) <= IMPLIED_TOKEN:
        raise _wrong(header, f"the vocabulary has no more than {len(texts)} tokens")
    _check_special_tokens(header, len(texts))
    for byte in range(256) if model in BYTE_SPELLINGS else ():
        if not BYTE_SPELLINGS[model](byte) & known:
            raise _wrong(header, f"the vocabulary has no token for the byte {byte:#04x}")


def _check_special_tokens(header: GgufFile, n_tokens: int) -> None:
    for name in ("bos", "eos"):
        added = header.metadata.get(f"tokenizer.ggml.add_{name}_token", False) is True
        added |= name == "bos" and header.metadata["tokenizer.ggml.model"] == "gemma4"
        if added and not 0 <= header.integer(f"tokenizer.ggml.{name}_token_id", -1) < n_tokens:
            raise _wrong(header, f"every text gets a {name} token, but there is none")


def _count(
    header: GgufFile, key: str, smallest: int, largest: int, default: int | None = None
) -> int:
    """An integer in the metadata, within bounds. Raises ModelError."""
    value = header.integer(key, default)
    if not smallest <= value <= largest:
        raise _wrong(header, f"{key} is {value}, not between {smallest} and {largest}")
    return value


def _per_layer(header: GgufFile, key: str, default: int | None) -> list[int]:
    """A count for each layer, from an array or one number for all; [] if missing without
    default."""
    array = header.metadata.get(key)
    if not isinstance(array, GgufArray):
        if array is None and default is None:
            return []
        return [_count(header, key, 0, 1 << 24, default)] * header.n_layers
    if array.kind not in (ValueType.UINT32, ValueType.INT32) or len(array) != header.n_layers:
        raise _wrong(header, f"{key} does not give one count for each of {header.n_layers} layers")
    return [int(value) for value in array.values()]


def _wrong(header: GgufFile, what: str) -> ModelError:
    return ModelError(f"{header.path} is damaged: {what}; download or convert it again")
