"""A DFlash head (arXiv 2602.06036) of a real model: it fills the masks behind the last token in one
pass, and learns that from many blocks of a text at once."""

from __future__ import annotations

import gguf
import torch
from torch import nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention, silu

from gguf_llama import Llama, turned
from real_draft import RowsOfText, Wanted
from target_head import DROPOUT, TargetHead

BEGINS_AS = (28, 29)
"""The target's layers whose matrices the head's layers begin with; the first one's attention begins
as a copy of the latest hidden state instead."""
N_PAIRS, SHARPNESS = 13, 1.9
"""Rotary pairs by whose angles that attention knows the latest place, and the size of its queries
and keys."""
BLOCK, FADING = 8, 0.8
"""Tokens of a block, the last one of the text included, and how much less each guess counts: the
paper's exp(-1 / 4) for blocks of 8."""
STRIDE = 8
"""Places between the beginnings of blocks that are learnt."""
MASK_TOKEN = 16
"""`<empty_output>`, which no text has."""


class BlockHead(TargetHead):
    """Fills blocks: the token at a place and masks behind it, which see the target's hidden states
    before that place, and one another."""

    architecture = "dflash"

    def __init__(self, target: Llama) -> None:
        super().__init__(target)
        width, size = self.shape.width, self.shape.head
        self.enc_output_norm = nn.Parameter(torch.ones(width))
        self.blk = nn.ModuleList()
        for number in BEGINS_AS:
            layer = target.blk[number]
            own = {"attn_norm": torch.ones(width)}
            own |= {name: getattr(layer, f"attn_{name[-1]}") for name in ("attn_q", "attn_k")}
            own["attn_k"] = self.for_every_head(layer.attn_k)
            own["attn_v"] = self.for_every_head(layer.attn_v)
            for name in ("attn_q", "attn_k", "attn_v"):
                # text and masks meet the same matrices, and have norms of their own
                own[name] = own[name] * layer.attn_norm
            for name in ("attn_q", "attn_k"):
                own[f"{name}_norm"] = own[name].pow(2).sum(1).mean().sqrt() * torch.ones(size)
            for name in ("attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
                own[name] = getattr(layer, name)
            parameters = {name: nn.Parameter(w.detach().clone()) for name, w in own.items()}
            self.blk.append(nn.ParameterDict(parameters))

    @torch.no_grad()
    def calibrate(self, states: torch.Tensor) -> None:
        """Bring hidden states [rows, length, layers, values] to one size, and let the first layer
        copy the latest one: text and blocks differ along one direction, and queries and keys along
        it differ by their distance alone."""
        super().calibrate(states)
        text = self.normed(self.fuse(states.float()), self.enc_output_norm).flatten(0, 1)[::5]
        some = self.token_embd[:: 1 + len(self.token_embd) // len(text)].float()
        block = self.normed(some, self.blk[0]["attn_norm"])
        rows = torch.cat([text, block])
        wanted = torch.cat([torch.ones(len(text)), -torch.ones(len(block))])
        damped = rows.T @ rows + len(rows) * 1e-3 * torch.eye(len(text[0]))
        direction = torch.linalg.solve(damped, rows.T @ wanted)
        near = (torch.arange(self.shape.head) < 2 * N_PAIRS).float().repeat(self.shape.n_heads)
        layer = self.blk[0]
        layer["attn_k"].copy_(near[:, None] * direction)
        layer["attn_q"].copy_(-near[:, None] * direction)
        layer["attn_q_norm"].fill_(SHARPNESS)
        layer["attn_k_norm"].fill_(SHARPNESS)
        layer["attn_v"].copy_(torch.eye(self.shape.width))
        layer["attn_output"].copy_(self.scale[-1] * torch.eye(self.shape.width))

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Normed hidden states of the masks [rows, blocks, masks, values] of blocks that begin with
        the tokens at `starts`. The states may end before the tokens."""
        n_blocks = len(starts)
        block = torch.full((len(tokens), n_blocks, BLOCK), MASK_TOKEN)
        block[..., 0] = tokens[:, starts]
        x = self.token_embd[block.flatten(1)]
        context = self.normed(self.fuse(states), self.enc_output_norm)
        places = torch.arange(context.shape[1])
        number = torch.arange(n_blocks).repeat_interleave(BLOCK)
        at = (starts[:, None] + torch.arange(BLOCK)).flatten()
        turns = Llama.turns(self, 0, tokens.shape[1] + BLOCK)  # type: ignore[arg-type]
        sees = torch.cat(
            [starts[number][:, None] > places, number[:, None] == number], 1
        )  # [places of blocks, places of the text and of blocks]
        both = torch.cat([places, at])
        for layer in self.blk:
            y = dropout(self.normed(x, layer["attn_norm"]), DROPOUT, self.training)
            seen = torch.cat([context, y], 1)
            q, k, v = (
                self.heads(values, layer[f"attn_{name}"])
                for name, values in (("q", y), ("k", seen), ("v", seen))
            )
            q = turned(self.normed(q, layer["attn_q_norm"]), turns[:, at])
            k = turned(self.normed(k, layer["attn_k_norm"]), turns[:, both])
            found = scaled_dot_product_attention(q, k, v, attn_mask=sees)
            x = x + linear(found.transpose(1, 2).flatten(2), layer["attn_output"])
            y = self.normed(x, layer["ffn_norm"])
            inner = silu(linear(y, layer["ffn_gate"])) * linear(y, layer["ffn_up"])
            x = x + linear(dropout(inner, DROPOUT, self.training), layer["ffn_down"])
        masks = x.unflatten(1, (n_blocks, BLOCK))[:, :, 1:]
        return self.normed(masks, self.output_norm)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by their names in GGUF, where rotary pairs of this architecture are the
        halves of a head."""
        size = self.shape.head
        halves = torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2)])
        values = super().tensors() | {"enc.output_norm": self.enc_output_norm}
        for name, value in values.items():
            if "attn_q" in name or "attn_k" in name:
                values[name] = value.unflatten(0, (-1, size))[:, halves].flatten(0, 1)
        return values

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("dflash.block_size", BLOCK)
        writer.add_bool("dflash.attention.causal", False)
        writer.add_uint32("tokenizer.ggml.mask_token_id", MASK_TOKEN)


def divergence(head: BlockHead, texts: RowsOfText) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the target in nats per token over all masks, the later the less, and the
    share of tokens that both rank first, by mask."""
    n = texts.tokens.shape[1]
    starts = torch.arange(1 + int(torch.randint(STRIDE, ())), n - BLOCK + 2, STRIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        masks = head(texts.tokens, texts.features, starts)
    wanted = Wanted.of(texts, head.token_embd)
    found = torch.stack([wanted.compare(masks[:, :, n], starts + n) for n in range(masks.shape[2])])
    weights = FADING ** torch.arange(len(found))
    return (found[:, 0] * weights).sum() / weights.sum(), found[:, 1].detach()
