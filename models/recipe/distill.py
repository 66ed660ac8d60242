"""Distils the target into the draft: initial weights, training texts and loss.
Knows two models and tokens; not how training proceeds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fit import Loss, mixed_precision

PROMPT_TOKENS = 64
NEW_TOKENS = 192


def best_part(
    target: LlamaForCausalLM, config: LlamaConfig, tokens: torch.Tensor
) -> LlamaForCausalLM:
    """The initial draft: the embedding, some layers and the last norm of the target.

    All choices of layers, in their order, are tried on `tokens`, int64 [batch, length + 1]; the
    one whose predictions are nearest to the whole target's is used (DistilBERT begins likewise,
    from every other layer: Sanh et al., arXiv 1910.01108)."""
    loss = distillation_loss(target)
    choices = combinations(range(target.config.num_hidden_layers), config.num_hidden_layers)
    with torch.no_grad(), mixed_precision():
        found = min(choices, key=lambda layers: loss(_part(target, config, layers), tokens).item())
    print(f"the draft begins with layers {found} of the target")
    return _part(target, config, found)


def _part(target: LlamaForCausalLM, config: LlamaConfig, layers: Sequence[int]) -> LlamaForCausalLM:
    draft = LlamaForCausalLM(config).to(target.device)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    for ours, theirs in zip(draft.model.layers, layers, strict=True):
        ours.load_state_dict(target.model.layers[theirs].state_dict())
    return draft


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Kullback-Leibler divergence of the draft from the target, in nats per token."""
    target.eval().requires_grad_(False)

    def loss(draft: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
        inputs = tokens[:, :-1]
        with torch.no_grad():
            wanted = target(inputs, use_cache=False).logits.float().log_softmax(-1)
        offered = draft(inputs, use_cache=False).logits.float().log_softmax(-1)
        # sum over the vocabulary of p * (log p - log q), [batch, length]
        return (wanted.exp() * (wanted - offered)).sum(-1).mean()

    return loss


@torch.inference_mode()
def continuations(
    target: LlamaForCausalLM, prompts: torch.Tensor, new_tokens: int, temperature: float
) -> torch.Tensor:
    """The target's continuations of int64 [batch, n] prompts; temperature 0 is greedy.
    Returns int64 [batch, n + new_tokens]; the end-of-text token does not end a row."""
    sampling = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    return target.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
        **sampling,
    )


def sample_text(
    target: LlamaForCausalLM,
    batches: Iterator[torch.Tensor],
    file: Path,
    *,
    budget_s: float,
    temperatures: tuple[float, ...] = (0.0, 0.8),
) -> None:
    """Save texts of the target, generated in `budget_s` seconds, as one uint16 stream of equal
    rows."""
    if file.exists():
        return
    torch.manual_seed(0)
    target.eval()
    rows, started = [], time.monotonic()
    while time.monotonic() - started < budget_s:
        temperature = temperatures[len(rows) % len(temperatures)]
        prompts = next(batches)[:, :PROMPT_TOKENS]
        with mixed_precision():
            rows.append(continuations(target, prompts, NEW_TOKENS, temperature))
    np.save(file, torch.cat(rows).cpu().numpy().astype(np.uint16).reshape(-1))
