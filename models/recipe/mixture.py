"""Small mixtures of experts, upcycled from the trained target: their shapes, routing and loss.
Knows one trained LLaMA and tokens; not how training proceeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fit import Loss


@dataclass(frozen=True)
class ExpertShape:
    """Experts of a layer: `n_experts` networks of `width` hidden units, `n_used` for a token, and
    one of `n_shared * width` units for all tokens. The first `n_dense_first` layers have none."""

    n_experts: int
    n_used: int
    width: int
    n_shared: int = 0
    n_dense_first: int = 0


COARSE = ExpertShape(n_experts=16, n_used=4, width=64)
"""Mixtral's kind."""
FINE = ExpertShape(n_experts=128, n_used=8, width=32, n_shared=1, n_dense_first=1)
"""DeepSeek's and Qwen's kind. A narrower expert would not fill a block of Q8_0."""

BALANCE_WEIGHT = 0.02
"""Weight of the load-balancing loss; below about 0.01 some experts get no tokens (Fedus et al.,
arXiv 2101.03961)."""
CAPACITY = 3.0
"""Most tokens of an expert in a training step, in multiples of an even share; others skip it."""
PART_SPREAD, REGION_SPREAD = 0.3, 1.0
"""Spread of the initial scores between the parts of a layer, and between its regions."""


class Experts(nn.Module):
    """A layer's router and its experts, side by side in three matrices.

    Every expert gets its tokens gathered in a batch of one size, so that a step is three products
    of stacked matrices. As in Mixtral and ERNIE the weights are the softmax over the chosen
    experts' scores."""

    def __init__(self, hidden: int, shape: ExpertShape) -> None:
        super().__init__()
        self.shape = shape
        units, shared = shape.n_experts * shape.width, shape.n_shared * shape.width
        self.router = nn.Linear(hidden, shape.n_experts, bias=False)
        self.gate = nn.Linear(hidden, units, bias=False)
        self.up = nn.Linear(hidden, units, bias=False)
        self.down = nn.Linear(units, hidden, bias=False)
        if shared:
            self.shared_gate = nn.Linear(hidden, shared, bias=False)
            self.shared_up = nn.Linear(hidden, shared, bias=False)
            self.shared_down = nn.Linear(shared, hidden, bias=False)
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            scores = self.router(x.float()).flatten(0, -2)  # [tokens, n_experts]
        best, chosen = scores.topk(self.shape.n_used, dim=-1)
        self.balance = balance_loss(scores, chosen)
        out = self.routed(x.flatten(0, -2), chosen, best.softmax(-1)).view_as(x)
        if self.shape.n_shared:
            hidden = nn.functional.silu(self.shared_gate(x)) * self.shared_up(x)
            out = out + self.shared_down(hidden)
        return out

    def routed(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The experts' sum for `x` [tokens, hidden], by `chosen` and `weights` [tokens, n_used]."""
        (n_tokens, hidden), n_experts = x.shape, self.shape.n_experts
        expert, order = chosen.flatten().sort(stable=True)
        counts = torch.zeros(n_experts + 1, dtype=torch.long, device=x.device)
        counts = counts.scatter_add(0, expert + 1, torch.ones_like(expert))
        rank = torch.arange(len(expert), device=x.device) - counts.cumsum(0)[expert]
        room = round(CAPACITY * len(expert) / n_experts)
        if not self.training:
            room = int(counts.max())
        unused = n_experts * room  # the place of whatever has no room
        place = torch.where(rank < room, expert * room + rank, unused)
        token = torch.full((unused + 1,), n_tokens, device=x.device)
        token = token.scatter(0, place, order // self.shape.n_used)[:-1]
        weight = torch.zeros(unused + 1, dtype=weights.dtype, device=x.device)
        weight = weight.scatter(0, place, weights.flatten()[order])[:-1]

        stacked = (n_experts, -1, hidden)
        gathered = torch.cat([x, x.new_zeros(1, hidden)])[token].view(stacked)
        gate, up = self.gate.weight.view(stacked), self.up.weight.view(stacked)
        down = self.down.weight.view(hidden, n_experts, -1).permute(1, 2, 0)
        units = nn.functional.silu(gathered @ gate.mT) * (gathered @ up.mT)
        parts = (units @ down).flatten(0, 1) * weight.unsqueeze(-1)
        return parts.new_zeros(n_tokens + 1, hidden).index_add(0, token, parts)[:-1].to(x.dtype)


def balance_loss(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Switch Transformer's: 1 when experts share the tokens evenly, n_experts when one has all."""
    n_experts = scores.shape[-1]
    counts = scores.new_zeros(n_experts).scatter_add(
        0, chosen.flatten(), scores.new_ones(chosen.numel())
    )
    probability = scores.softmax(-1).mean(0)
    return n_experts * (counts / chosen.numel() * probability).sum()


class MixtureForCausalLM(LlamaForCausalLM):
    """A LLaMA whose feed-forward networks are mixtures of experts."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        shape = ExpertShape(**config.experts)
        for layer in self.mixed_layers:
            layer.mlp = Experts(config.hidden_size, shape)

    @property
    def mixed_layers(self) -> nn.ModuleList:
        return self.model.layers[self.config.experts.get("n_dense_first", 0) :]


def upcycled(
    target: LlamaForCausalLM, shape: ExpertShape, tokens: torch.Tensor
) -> MixtureForCausalLM:
    """The initial mixture: the target's attention, and its feed-forward networks cut into parts of
    hidden units that fire together (MoEfication: Zhang et al., arXiv 2110.01786).

    There are more experts than parts: every part is copied for some regions of the inputs, so
    that the experts of a token are different parts (virtual groups: He et al., arXiv 2410.07524).
    What fires where is learnt from `tokens`, int64 [batch, length]."""
    config = LlamaConfig.from_dict(target.config.to_dict())
    config.experts = asdict(shape)
    mixture = MixtureForCausalLM(config).to(target.device)
    mixture.load_state_dict(target.state_dict(), strict=False)
    theirs = target.model.layers[shape.n_dense_first :]
    with torch.no_grad():
        for ours, dense, x in zip(
            mixture.mixed_layers, theirs, inputs(target, theirs, tokens), strict=True
        ):
            cut(ours.mlp, dense.mlp, x)
    return mixture


def inputs(
    target: LlamaForCausalLM, layers: nn.ModuleList, tokens: torch.Tensor
) -> list[torch.Tensor]:
    """Inputs of the feed-forward networks of `layers`, [tokens, hidden] each."""
    seen: list[torch.Tensor] = []
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, 1)))
        for layer in layers
    ]
    target.eval()(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def cut(experts: Experts, dense: nn.Module, x: torch.Tensor) -> None:
    """Fill `experts` with parts of the `dense` network and a router that finds them for `x`."""
    shape = experts.shape
    gate, up, down = dense.gate_proj.weight, dense.up_proj.weight, dense.down_proj.weight
    strength = (nn.functional.silu(x @ gate.T) * (x @ up.T)).abs() * down.norm(dim=0)
    by_strength = strength.mean(0).argsort(descending=True)
    n_shared = shape.n_shared * shape.width
    if n_shared:
        units = by_strength[:n_shared]
        experts.shared_gate.weight.copy_(gate[units])
        experts.shared_up.weight.copy_(up[units])
        experts.shared_down.weight.copy_(down[:, units])
    parts = firing_together(strength, by_strength[n_shared:], shape.width)
    part = torch.arange(shape.n_experts) % len(parts)
    region = torch.arange(shape.n_experts) // len(parts)
    units = torch.cat([parts[index] for index in part.tolist()])
    experts.gate.weight.copy_(gate[units])
    experts.up.weight.copy_(up[units])
    # the weights of the chosen experts sum to one
    experts.down.weight.copy_(shape.n_used * down[:, units])

    strengths = torch.stack([strength[:, units].sum(-1) for units in parts], -1)
    wanted = torch.cat(
        [
            PART_SPREAD * standardised(strengths),
            REGION_SPREAD * standardised(regions(x, int(region.max()) + 1)),
        ],
        -1,
    )
    ridge = 0.01 * x.square().sum(0).mean() * torch.eye(x.shape[1], device=x.device)
    found = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted).T
    experts.router.weight.copy_(found[part] + found[len(parts) + region])


def firing_together(strength: torch.Tensor, units: torch.Tensor, width: int) -> list[torch.Tensor]:
    """`units` in parts of `width`: a part is the strongest unit left and those whose strength goes
    with its own. What does not fill a part is left out."""
    likeness = standardised(strength).T @ standardised(strength)
    parts = []
    while len(units) >= width:
        nearest = likeness[units[0], units].argsort(descending=True)
        parts.append(units[nearest[:width]])
        units = units[nearest[width:].sort().values]  # still by strength
    return parts


def regions(x: torch.Tensor, number: int, rounds: int = 20) -> torch.Tensor:
    """Nearness of `x` [tokens, hidden] to each of `number` centres, found by k-means."""
    directions = nn.functional.normalize(x - x.mean(0), dim=-1)
    centres = directions[:: max(1, len(x) // number)][:number]
    for _ in range(rounds):
        nearest = (directions @ centres.T).argmax(-1)
        of_each = nn.functional.one_hot(nearest, number).float().T @ directions
        centres = nn.functional.normalize(of_each, dim=-1)
    return directions @ centres.T


def standardised(values: torch.Tensor) -> torch.Tensor:
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-6)


def with_balance(loss: Loss) -> Loss:
    """`loss` plus the mean over the layers of the load-balancing loss."""

    def balanced(model: MixtureForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
        value = loss(model, tokens)
        layers = [layer.mlp.balance for layer in model.mixed_layers]
        return value + BALANCE_WEIGHT * torch.stack(layers).mean()

    return balanced
