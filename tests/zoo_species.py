"""Hyperparameters of a tiny model of every architecture that the installed llama.cpp knows.

Nearly all architectures share one set; what an architecture wants differently stands under its
name. Knows no tensors: llama.cpp names those itself (`zoo_files`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgespec_runtimes.gguf.llama import abi

Hyperparameters = dict[str, Any]

N_CTX_TRAIN = 512
N_EMBD, N_HEAD, N_KV_HEAD, N_FF, N_LAYER = 256, 4, 2, 512, 8


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NO_TEXT = ("clip", "gptj", "gemma4-assistant")
"""Architectures of which llama.cpp loads no model by itself, whatever its file says."""
NO_NAME = "(unknown)"
NEVER_PAGED = ("hrm_text",)
"""Architectures whose passes go through the same weights several times: these stay in memory."""

EXPERTS_ONLY = _names(
    """afmoe arctic bailingmoe bailingmoe2 bailingmoe3 cohere2moe dbrx deepseek deepseek2
    deepseek2-ocr deepseek32 deepseek4 dots1 dots3note ernie4_5-moe exaone-moe glm-dsa glm4moe
    glm5-next gpt-oss granitemoe grok grovemoe hunyuan-moe hy_v3 hy_v4 kimi-k3 kimi-linear laguna
    lfm2moe llada-moe llama4 maple mellum mimo2 minimax-01 minimax-m2 minimax-m3 mistral4
    nemotron_h_moe nomic-bert-moe olmoe paddleocr phimoe qwen2moe qwen35moe qwen3moe qwen3next
    qwen3vlmoe qwen4exp rnd1 smallthinker step35"""
)
EXPERTS_TOO = frozenset(("llama", "minicpm", "granite", "mistral3", "refact", "jamba", "gemma4"))

COMMON_KEYS = ("tokenizer.", "xielu.")

LATENT = _names(
    """deepseek2 deepseek32 glm-dsa dots3note kimi-linear bailingmoe3 kimi-k3 glm5-next mistral4
    hy_v4"""
)
"""Attention through a latent vector (MLA)."""
ATTENDS_SOMETIMES = _names(
    """plamo2 jamba nemotron_h nemotron_h_moe granitehybrid lfm2 lfm2moe kimi-linear bailingmoe3
    kimi-k3 glm5-next"""
)
"""Layers without KV heads are recurrent."""


VARIANTS: dict[str, Hyperparameters] = {
    # the factors change where a context is larger than the original one, which llama.cpp rounds up
    "longrope": {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 256},
}


@dataclass(frozen=True)
class Species:
    """An architecture, with or without experts where it has both."""

    architecture: str
    experts: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        has_both = self.experts and self.architecture in EXPERTS_TOO
        parts = (self.architecture, "experts" if has_both else "", self.variant)
        return "+".join(part for part in parts if part)


def architectures() -> list[str]:
    """All names that the installed llama.cpp knows, as its own table has them."""
    name_of = abi.library("llama")[
        "_Z13llm_arch_name8llm_arch"
    ]  # const char * llm_arch_name(llm_arch)
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    names = []
    while (name := name_of(len(names)).decode()) != "unknown":
        names.append(name)
    return names


def has_property(function: str, architecture: str) -> bool:
    """Answer of one of libllama's `bool function(const llm_arch &)`, named by its C++ symbol."""
    ask = abi.library("llama")[function]
    ask.restype, ask.argtypes = ctypes.c_bool, [ctypes.POINTER(ctypes.c_int)]
    return bool(ask(ctypes.c_int(architectures().index(architecture))))


def all_species() -> Iterator[Species]:
    for name in architectures():
        if name == NO_NAME:
            continue
        yield Species(name, name in EXPERTS_ONLY)
        if name in EXPERTS_TOO:
            yield Species(name, True)
    yield Species("phi3", variant="longrope")
    yield Species("minicpm3", variant="longrope")


def hyperparameters(species: Species) -> Hyperparameters:
    """Metadata by the part of their keys that follows the architecture's name; those that begin
    with a word of COMMON_KEYS stand as they are."""
    name = species.architecture
    size = _sizes(name)
    values = _shared(name, size)
    values |= _attention(name, size)
    if species.experts:
        values |= _experts(name, size.n_ff)
    values |= _own(name, size) | VARIANTS.get(species.variant, {})
    return {key: value for key, value in values.items() if value is not None}


EVERY_HEAD = ("olmoe", "deepseek2-ocr", "dots1", "minicpm3", "rwkv6", "rwkv6qwen2")
"""Architectures whose heads have keys and values of their own."""


@dataclass(frozen=True)
class _Sizes:
    n_embd: int = N_EMBD
    n_head: int = N_HEAD
    n_kv_head: int = N_KV_HEAD
    n_ff: int = N_FF
    n_layer: int = N_LAYER

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head


def _sizes(name: str) -> _Sizes:
    if name in LATENT:
        return _Sizes(n_embd=128, n_head=1, n_kv_head=1, n_ff=512, n_layer=16)
    return {
        "gemma3n": _Sizes(n_embd=128, n_head=2, n_kv_head=2, n_ff=192, n_layer=24),
        "gemma4": _Sizes(n_layer=10),
        "deepseek4": _Sizes(n_embd=512, n_head=8, n_kv_head=1, n_ff=512, n_layer=4),
        "step35": _Sizes(n_embd=320, n_head=4, n_kv_head=2),
        "laguna": _Sizes(n_embd=320, n_head=4, n_kv_head=2),
        "hrm_text": _Sizes(n_layer=24),
        **dict.fromkeys(EVERY_HEAD, _Sizes(n_kv_head=N_HEAD)),
    }.get(name, _Sizes())


def _shared(name: str, size: _Sizes) -> Hyperparameters:
    return {
        "context_length": N_CTX_TRAIN,
        "embedding_length": size.n_embd,
        "features_length": size.n_embd,
        "block_count": size.n_layer,
        "leading_dense_block_count": 1,
        "feed_forward_length": size.n_ff,
        "use_parallel_residual": False,
        "logit_scale": 1.0,
        "time_mix_extra_dim": 32,
        "time_decay_extra_dim": 64,
        "full_attention_interval": 2,
        "swiglu_clamp_exp": 7.0,
        "ssm.inner_size": 2 * size.n_embd,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.time_step_rank": size.n_head,
        "ssm.group_count": 2,
        "kda.head_dim": 128,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
        "wkv.head_size": size.head,
        "shortconv.l_cache": 3,
        "residual_scale": 1.0,
        "attn_res.block_size": 12,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
        "posnet.embedding_length": size.n_embd,
        "posnet.block_count": size.n_layer,
        "convnext.embedding_length": size.n_embd,
        "convnext.block_count": size.n_layer,
        "token_shift_count": 2,
        "tokenizer.ggml.token_type_count": 2,
        "xielu.alpha_n": [1.0] * size.n_layer,
        "xielu.alpha_p": [1.0] * size.n_layer,
        "xielu.beta": [1.0] * size.n_layer,
        "xielu.eps": [1e-7] * size.n_layer,
    }


def _attention(name: str, size: _Sizes) -> Hyperparameters:
    heads: Any = size.n_head
    kv_heads: Any = size.n_kv_head
    if name in ATTENDS_SOMETIMES:
        attends = [layer % 2 == (name != "plamo2") for layer in range(size.n_layer)]
        kv_heads = [kv_heads * one for one in attends]
        if name == "plamo2":
            heads = [heads * one for one in attends]
    values: Hyperparameters = {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": 1.0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "attention.decay_lora_rank": 32,
        "attention.iclr_lora_rank": 32,
        "attention.value_residual_mix_lora_rank": 32,
        "attention.gate_lora_rank": 32,
        "attention.relative_buckets_count": 8,
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": 2,
        "attention.indexer.head_count": 4,
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": 1 << 17,
        "attention.indexer.block_size": 4,
        "attention.indexer.local_blocks": 1,
        "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True,
        "rope.dimension_sections": [size.head // 4] * 4,
    }
    if name in LATENT:
        rotated = 0 if name == "glm5-next" else 32
        values |= {
            "attention.key_length": 64 + rotated,
            "attention.value_length": 64,
            "rope.dimension_count": rotated,
            "attention.key_length_mla": 96,
            "attention.value_length_mla": 64,
        }
    return values


def _experts(name: str, n_ff: int) -> Hyperparameters:
    return {
        "expert_feed_forward_length": n_ff // 2,
        "expert_shared_feed_forward_length": n_ff // 4,
        "expert_latent_length": n_ff,
        "expert_chunk_feed_forward_length": n_ff // 4,
        "interleave_moe_layer_step": 2,
        "moe_every_n_layers": 2,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_group_scale": 1.0,
        "experts_per_group": 1,
        "expert_weights_scale": 1.0,
    }


def _own(name: str, size: _Sizes) -> Hyperparameters:
    """Differences of this architecture from others."""
    alternating = [layer % 2 for layer in range(size.n_layer)]
    mirrored = [1 - kind for kind in alternating]
    own: dict[str, Hyperparameters] = {
        "gemma4": {
            "embedding_length_per_layer_input": size.n_embd // 2,
            "attention.shared_kv_layers": 0,
            "attention.key_length": size.head,
            "attention.value_length": size.head,
            "attention.key_length_swa": size.head,
            "attention.value_length_swa": size.head,
            "rope.freq_base_swa": 10000.0,
            "attention.sliding_window_pattern": [
                (layer + 1) % 5 != 0 for layer in range(size.n_layer)
            ],
        },
        "deepseek4": {
            "attention.key_length": size.head,
            "attention.value_length": size.head,
            "rope.dimension_count": size.head // 2,
            "attention.output_group_count": 8,
            "attention.output_lora_rank": 32,
            "attention.compress_ratios": [0, 0, 4, 128],
            "attention.compress_rope_freq_base": 160000.0,
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 2,
            "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 0,
            "swiglu_clamp_exp": 10.0,
            "expert_weights_norm": True,
            "expert_gating_func": 4,
        },
        "dots3note": {
            "attention.kv_lora_rank_swa": 64,
            "attention.key_length_swa": 96,
            "attention.value_length_swa": 64,
            "attention.key_length_mla_swa": 96,
            "attention.value_length_mla_swa": 64,
            "rope.freq_base_swa": 10000.0,
            "attention.indexer.types": mirrored,
        },
        "hy_v4": {
            "hyper_connection.count": 4,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 2.0,
            "swiglu_clamp_exp": 10.0,
            "expert_weights_norm": True,
            "attention.indexer.types": mirrored,
        },
        "bailingmoe3": {
            "rope.dimension_sections": [4, 6, 6, 0],
            "swiglu_clamp_exp": [0.0] + [4.0] * (size.n_layer - 1),
            "swiglu_clamp_shexp": [0.0] + [5.0] * (size.n_layer - 1),
            "kda.safe_gate": None,
        },
        "nemotron_h": {
            "feed_forward_length": [
                0 if layer % 4 < 2 else size.n_ff for layer in range(size.n_layer)
            ],
        },
        "minimax-m3": {"rope.dimension_count": 64, "attention.indexer.head_count": size.n_kv_head},
        "hrm_text": {"hrm.layers_per_stack": 4, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
        "plamo2": {"ssm.group_count": 0},
        "rwkv6qwen2": {"token_shift_count": 1},
        "arwkv7": {"token_shift_count": 1},
        "minicpm3": {"rope.dimension_count": 32},
        "wavtokenizer-dec": {"posnet.block_count": 6},
        "graniteswitch": {
            "adapters.count": 2,
            "adapters.lora_rank": 32,
            "adapters.token_ids_activate": [300, 301],
            "adapters.token_ids_substitute": [302, 303],
        },
        "gemma4-assistant": {
            "embedding_length_out": 2 * size.n_embd,
            "nextn_predict_layers": size.n_layer - 1,
            "attention.sliding_window_pattern": alternating,
            "attention.key_length_swa": size.head,
            "attention.value_length_swa": size.head,
        },
        "eagle3": {"target_layers": [1, 2, 3], "target_hidden_size": size.n_embd},
        "dflash": {"target_layers": [1, 2, 3], "attention.sliding_window_pattern": alternating},
    }
    own["nemotron_h_moe"] = own["nemotron_h"]
    values = dict(own.get(name, {}))
    if name in {
        *("cohere2moe", "mimo2", "step35", "spark2_5", "muse-glimmer", "granite_swa"),
        *("dots3note", "maple"),
    }:
        values["attention.sliding_window_pattern"] = alternating
    if name in {"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}:
        values["ssm.inner_size"] = 128 * size.n_head
    if name in {"qwen4exp", "glm5-next"}:
        values |= _looked_up_ngrams(name, size)
    return values


def _looked_up_ngrams(name: str, size: _Sizes) -> Hyperparameters:
    """Embeddings of n-grams, hashed into a table of their own."""
    n_tables, n_rows = 4, 64
    return {
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hyper_connection.low_rank": 8,
        "attention.compress_ratios": [4] * size.n_layer,
        "attention.indexer.key_length": size.head,
        "ple.layers": [0],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": 4,
        "ple.eos_token_id": 0,
        "embedding_length_per_layer_input": size.n_embd // n_tables,
        "ple.layer_multipliers": ("u64", [1, 3, 5]),
        "ple.head_offsets": ("u64", [table * n_rows for table in range(n_tables)]),
        "ple.head_vocab_sizes": ("u64", [n_rows] * n_tables),
    }
