"""A small hybrid of short convolutions and attention, upcycled from the trained target.
Knows its shape and where it begins, from one trained LLaMA; not how training proceeds."""

from __future__ import annotations

import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM

CONVOLVED = (0, 2, 4)
"""Layers whose attention becomes a short convolution."""
KERNEL = 3
"""Tokens that a convolution sees."""


def hybrid_config(target: LlamaConfig) -> Lfm2Config:
    return Lfm2Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=target.num_hidden_layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        max_position_embeddings=target.max_position_embeddings,
        norm_eps=target.rms_norm_eps,
        rope_parameters=dict(target.rope_parameters),
        layer_types=[
            "conv" if layer in CONVOLVED else "full_attention"
            for layer in range(target.num_hidden_layers)
        ],
        conv_L_cache=KERNEL,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=True,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=None,
    )


def upcycled(target: LlamaForCausalLM) -> Lfm2ForCausalLM:
    """The initial hybrid: the target's embedding, feed-forward networks and remaining attention,
    with convolutions that add nothing yet."""
    hybrid = Lfm2ForCausalLM(hybrid_config(target.config))
    weights = target.state_dict()
    initial = {
        "model.embed_tokens.weight": weights["model.embed_tokens.weight"],
        "model.embedding_norm.weight": weights["model.norm.weight"],
    }
    for layer in range(target.config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        initial |= {
            f"{prefix}.{ours}.weight": weights[f"{prefix}.{theirs}.weight"]
            for ours, theirs in _SHARED.items()
            if layer not in CONVOLVED or not theirs.startswith("self_attn")
        }
    unknown = hybrid.load_state_dict(initial, strict=False).unexpected_keys
    assert not unknown, unknown
    with torch.no_grad():
        for layer in CONVOLVED:
            hybrid.model.layers[layer].conv.out_proj.weight.zero_()
    return hybrid.to(target.device)


_SHARED = {
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.out_proj": "self_attn.o_proj",
}
