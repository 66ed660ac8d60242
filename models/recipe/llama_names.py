"""Converts between weights of a GGUF file and a LLaMA model in PyTorch.

Knows names and orders of weights; nothing of files or training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from edgespec_runtimes.gguf.file.header import GgufFile
from gguf_weights import Weights

LAYER_TENSORS: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Tensors of a layer: transformers' names to GGUF's."""
FIRST_TENSORS: Mapping[str, str] = {"model.embed_tokens": "token_embd"}
LAST_TENSORS: Mapping[str, str] = {"model.norm": "output_norm", "lm_head": "output"}


def model_of(header: GgufFile, weights: Weights) -> LlamaForCausalLM:
    """The model in float32, of the plain architecture llama."""
    tied = "output.weight" not in weights
    heads, kv_heads = header.n_heads, header.n_kv_heads
    config = LlamaConfig(
        vocab_size=len(weights["token_embd.weight"]),
        hidden_size=header.embedding_length,
        num_hidden_layers=header.n_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=header.head_size,
        intermediate_size=header.integer(header.key("feed_forward_length")),
        max_position_embeddings=header.context_length,
        tie_word_embeddings=tied,
        rms_norm_eps=header.metadata[header.key("attention.layer_norm_rms_epsilon")],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": header.metadata.get(header.key("rope.freq_base"), 10000.0),
        },
    )
    model = LlamaForCausalLM(config)
    state = {}
    for theirs, ours in names(config.num_hidden_layers):
        if ours in weights:
            n_heads = _rotated(ours, heads, kv_heads)
            values = _halved(weights[ours], n_heads) if n_heads else weights[ours]
            state[theirs] = torch.from_numpy(values)
    model.load_state_dict(state, strict=False)  # a tied head has no weights of its own
    model.tie_weights()
    return model


def tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF names and float32 values, in order of use; without a tied head."""
    config, state = model.config, model.state_dict()
    for theirs, ours in names(config.num_hidden_layers):
        if theirs not in state or (config.tie_word_embeddings and ours == "output.weight"):
            continue
        values = state[theirs].detach().float().numpy()
        if n_heads := _rotated(ours, config.num_attention_heads, config.num_key_value_heads):
            values = interleave_rotary(values, n_heads)
        yield ours, values


def names(n_layers: int) -> Iterator[tuple[str, str]]:
    """Possible tensors of a model: transformers' names and GGUF's."""
    within = {
        f"model.layers.{layer}.{theirs}": f"blk.{layer}.{ours}"
        for layer in range(n_layers)
        for theirs, ours in LAYER_TENSORS.items()
    }
    for theirs, ours in {**FIRST_TENSORS, **within, **LAST_TENSORS}.items():
        yield f"{theirs}.weight", f"{ours}.weight"


def interleave_rotary(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder a projection's rows from transformers' rotary layout to GGUF's.

    transformers rotates row i of a head with row i + dim / 2, GGUF's LLaMA adjacent rows.
    """
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _halved(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo `interleave_rotary`."""
    rows, columns = values.shape
    neighbours = values.reshape(heads, rows // heads // 2, 2, columns)
    return neighbours.swapaxes(1, 2).reshape(rows, columns).copy()


def _rotated(name: str, heads: int, kv_heads: int) -> int:
    """Number of heads of a projection whose rows are rotated; 0 for other tensors."""
    return {"attn_q": heads, "attn_k": kv_heads}.get(name.split(".")[-2], 0)
