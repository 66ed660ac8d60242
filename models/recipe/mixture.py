"""A small mixture of experts, upcycled from the trained target: its shape, routing and loss.
Knows one trained LLaMA and tokens; not how training proceeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fit import Loss


@dataclass(frozen=True)
class ExpertShape:
    """Experts of every layer: `n_experts` networks of `width` hidden units, `n_used` for a
    token."""

    n_experts: int = 16
    n_used: int = 4
    width: int = 64


EXPERTS = ExpertShape()
BALANCE_WEIGHT = 0.02
"""Weight of the load-balancing loss; below about 0.01 some experts get no tokens (Fedus et al.,
arXiv 2101.03961)."""
ROUTER_SPREAD = 0.1


class Experts(nn.Module):
    """A layer's router and its experts, side by side in three matrices.

    All of them are computed and those not chosen weighted zero: at this size one large product is
    faster on a CPU than a small one for each expert. As in Mixtral the weights are the softmax over
    the chosen experts' scores."""

    def __init__(self, hidden: int, shape: ExpertShape) -> None:
        super().__init__()
        self.shape = shape
        units = shape.n_experts * shape.width
        self.router = nn.Linear(hidden, shape.n_experts, bias=False)
        self.gate = nn.Linear(hidden, units, bias=False)
        self.up = nn.Linear(hidden, units, bias=False)
        self.down = nn.Linear(units, hidden, bias=False)
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            scores = self.router(x.float())  # [batch, length, n_experts]
        best, chosen = scores.topk(self.shape.n_used, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        self.balance = balance_loss(scores, weights)
        hidden = nn.functional.silu(self.gate(x)) * self.up(x)
        hidden = hidden.unflatten(-1, (self.shape.n_experts, self.shape.width))
        return self.down((hidden * weights.unsqueeze(-1).to(hidden.dtype)).flatten(-2))


def balance_loss(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Switch Transformer's: 1 when experts share the tokens evenly, n_experts when one has all."""
    n_experts = scores.shape[-1]
    share = (weights > 0).float().flatten(0, -2).mean(0)
    probability = scores.softmax(-1).flatten(0, -2).mean(0)
    return n_experts * (share / share.sum() * probability).sum()


class MixtureForCausalLM(LlamaForCausalLM):
    """A LLaMA whose feed-forward networks are mixtures of experts."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        shape = ExpertShape(**getattr(config, "experts", {}))
        for layer in self.model.layers:
            layer.mlp = Experts(config.hidden_size, shape)


def upcycled(target: LlamaForCausalLM, shape: ExpertShape = EXPERTS) -> MixtureForCausalLM:
    """The initial mixture: the target's attention, and experts that are random parts of its
    feed-forward network (sparse upcycling: Komatsuzaki et al., arXiv 2212.05055)."""
    config = LlamaConfig.from_dict(target.config.to_dict())
    config.experts = {"n_experts": shape.n_experts, "n_used": shape.n_used, "width": shape.width}
    mixture = MixtureForCausalLM(config)
    mixture.load_state_dict(target.state_dict(), strict=False)
    scale = config.intermediate_size / shape.width
    with torch.no_grad():
        for ours, theirs in zip(mixture.model.layers, target.model.layers, strict=True):
            units = torch.cat(
                [
                    torch.randperm(config.intermediate_size)[: shape.width]
                    for _ in range(shape.n_experts)
                ]
            )
            ours.mlp.gate.weight.copy_(theirs.mlp.gate_proj.weight[units])
            ours.mlp.up.weight.copy_(theirs.mlp.up_proj.weight[units])
            # chosen experts' weights sum to one; each has width / intermediate of the units
            ours.mlp.down.weight.copy_(scale * theirs.mlp.down_proj.weight[:, units])
            nn.init.normal_(ours.mlp.router.weight, std=ROUTER_SPREAD)
    return mixture.to(target.device)


def with_balance(loss: Loss) -> Loss:
    """`loss` plus the mean over the layers of the load-balancing loss."""

    def balanced(model: MixtureForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
        value = loss(model, tokens)
        layers = [layer.mlp.balance for layer in model.model.layers]
        return value + BALANCE_WEIGHT * torch.stack(layers).mean()

    return balanced
