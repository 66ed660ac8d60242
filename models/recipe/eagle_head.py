"""An EAGLE-3 head (arXiv 2503.01840) of a real model, and what it loses while it learns to guess
several tokens in a row (training-time test)."""

from __future__ import annotations

import gguf
import torch
from torch import nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention, silu

from gguf_llama import Llama, turned
from real_draft import SEED, RowsOfText, Wanted
from target_head import DROPOUT, TargetHead

BEGINS_AS = 29
"""The target's layer whose matrices the head's layer begins with."""
STEPS, FADING = 4, 0.8
"""Guesses in a row while training, and how much less each one counts."""
STRIDE = 3
"""Places between those from which a second guess and later ones are made."""


class EagleHead(TargetHead):
    """Pairs (the next token, hidden states of this one) to what predicts the token after it."""

    architecture = "eagle3"

    def __init__(self, target: Llama) -> None:
        super().__init__(target)
        width, layer = self.shape.width, target.blk[BEGINS_AS]
        own = {"attn_norm": torch.ones(width), "attn_norm_2": layer.attn_norm}
        generator = torch.Generator().manual_seed(SEED)
        matrices = {"attn_q": layer.attn_q}
        matrices |= {f"attn_{x}": self.for_every_head(getattr(layer, f"attn_{x}")) for x in "kv"}
        for name, right in matrices.items():
            noise = torch.randn((width, width), generator=generator) * right.std()
            own[name] = torch.cat([noise, right], 1)
        for name in ("attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
            own[name] = getattr(layer, name)
        parameters = {name: nn.Parameter(w.detach().clone()) for name, w in own.items()}
        self.blk = nn.ModuleList([nn.ParameterDict(parameters)])

    def calibrate(self, states: torch.Tensor) -> None:
        """Bring hidden states [rows, length, layers, values] to one size, and the layer's
        contributions with them."""
        super().calibrate(states)
        with torch.no_grad():
            self.blk[0]["attn_output"] /= self.scale[-1]
            self.blk[0]["ffn_down"] /= self.scale[-1]

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, starts: torch.Tensor
    ) -> list[torch.Tensor]:
        """Normed hidden states of each step [rows, places, values]. At place n of the first step
        they are about the token after `tokens[n]`, and `states[n]` belong to the token before
        that. Step s is at the places `starts + s`: what it knows of them is what the step before
        predicted, and the target's states end at `starts`, as in a tree."""
        n, layer = tokens.shape[1], self.blk[0]
        turns = Llama.turns(self, 0, n)  # type: ignore[arg-type]
        embedded = self.normed(self.token_embd[tokens], layer["attn_norm"])
        feature, at = self.fuse(states), torch.arange(n)
        sees = [at[:, None] >= at]
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        said = []
        for step in range(STEPS):
            q, k, v = self._qkv(embedded[:, at], feature, turns[:, at])
            keys.append(k)
            values.append(v)
            found = scaled_dot_product_attention(
                q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=torch.cat(sees, 1)
            )
            x = feature + linear(found.transpose(1, 2).flatten(2), layer["attn_output"])
            y = self.normed(x, layer["ffn_norm"])
            inner = silu(linear(y, layer["ffn_gate"])) * linear(y, layer["ffn_up"])
            x = x + linear(dropout(inner, DROPOUT, self.training), layer["ffn_down"])
            said.append(self.normed(x, self.output_norm))
            if step == 0:
                sees = [starts[:, None] >= at]
            sees.append(torch.eye(len(starts), dtype=torch.bool))
            feature, at = x if step else x[:, starts], starts + step + 1
        return said

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("eagle3.target_hidden_size", self.shape.width)
        writer.add_bool("eagle3.norm_before_residual", False)
        writer.add_bool("eagle3.norm_before_fc", False)

    def _qkv(
        self, embedded: torch.Tensor, feature: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        layer = self.blk[0]
        both = torch.cat([embedded, self.normed(feature, layer["attn_norm_2"])], -1)
        both = dropout(both, DROPOUT, self.training)
        q, k, v = (self.heads(both, layer[f"attn_{name}"]) for name in "qkv")
        return turned(q, turns), turned(k, turns), v


def divergence(head: EagleHead, texts: RowsOfText) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the target in nats per token over all steps, the later the less, and the
    share of tokens that both rank first, by step."""
    n = texts.tokens.shape[1] - 1
    starts = torch.arange(int(torch.randint(STRIDE, ())), n - STEPS + 1, STRIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = head(texts.tokens[:, 1:], texts.features[:, :-1], starts)
    wanted = Wanted.of(texts.after_first(), head.token_embd)
    found = torch.stack(
        [wanted.compare(x, starts + step if step else slice(None)) for step, x in enumerate(steps)]
    )
    weights = FADING ** torch.arange(STEPS)
    return (found[:, 0] * weights).sum() / weights.sum(), found[:, 1].detach()
