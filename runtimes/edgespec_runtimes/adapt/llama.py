"""LLaMA in PyTorch, computed from the tensors of a GGUF file by their names.

GGUF's rotary pairs are neighbours, so that no matrix is reordered on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from edgespec_runtimes.gguf.file.header import GgufFile

Tensors = Mapping[str, torch.Tensor]


def hidden_states(header: GgufFile, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """The normed last hidden states [batch, length, width] of `tokens` [batch, length];
    `adaptable.check` must have accepted the header."""
    epsilon = header.metadata[header.key("attention.layer_norm_rms_epsilon")]
    base: Any = header.metadata.get(header.key("rope.freq_base"), 10000.0)

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], tensors[f"{name}.weight"], epsilon)

    x = tensors["token_embd.weight"][tokens]
    for layer in range(header.n_layers):
        name = f"blk.{layer}"
        y = normed(x, f"{name}.attn_norm")
        q, k, v = (
            linear(y, tensors[f"{name}.attn_{part}.weight"])
            .unflatten(-1, (-1, header.head_size))
            .transpose(1, 2)
            for part in "qkv"
        )
        q, k = _rotated(q, base), _rotated(k, base)
        found = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + linear(found.transpose(1, 2).flatten(2), tensors[f"{name}.attn_output.weight"])
        y = normed(x, f"{name}.ffn_norm")
        gate, up, down = (tensors[f"{name}.ffn_{part}.weight"] for part in ("gate", "up", "down"))
        x = x + linear(silu(linear(y, gate)) * linear(y, up), down)
    return normed(x, "output_norm")


def logits(tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
    """Logits after hidden states; a tied head has no weights of its own."""
    return linear(hidden, tensors.get("output.weight", tensors["token_embd.weight"]))


def _rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary embedding of heads [batch, heads, length, size]."""
    length, size = x.shape[2:]
    angles = torch.arange(length)[:, None] * base ** (-torch.arange(0, size, 2) / size)
    cos, sin, a, b = angles.cos(), angles.sin(), x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
