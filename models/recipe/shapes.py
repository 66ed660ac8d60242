"""The shapes of the two models. Both are LLaMA, so that every GGUF runtime can run them.
Knows nothing of training."""

from __future__ import annotations

from transformers import LlamaConfig

N_VOCAB = 4096
N_CONTEXT = 1024


def llama(*, hidden: int, layers: int, heads: int, intermediate: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=N_VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        intermediate_size=intermediate,
        max_position_embeddings=N_CONTEXT,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0,
        eos_token_id=0,
    )


TARGET = llama(hidden=256, layers=6, heads=4, intermediate=640)
DRAFT = llama(hidden=256, layers=2, heads=4, intermediate=640)
"""Shape of the draft, as wide as the target, whose layers are its initial ones (see distill.py)."""
