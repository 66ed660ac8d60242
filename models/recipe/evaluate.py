"""Figures for the model card: held-out loss, and how often the draft agrees with the target.
Knows two models and a token stream."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaForCausalLM

from distill import PROMPT_TOKENS, continuations
from fit import device, mixed_precision, next_token_loss

WINDOW = 512
BATCH = 8


def held_out_windows(stream: np.ndarray) -> torch.Tensor:
    """All whole windows of the stream, int64 [n, WINDOW + 1]."""
    starts = range(0, len(stream) - WINDOW - 1, WINDOW)
    rows = np.stack([stream[start : start + WINDOW + 1] for start in starts])
    return torch.from_numpy(rows.astype(np.int64)).to(device())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, rows: torch.Tensor) -> float:
    """Mean cross-entropy over the windows, nats per token."""
    was_training = model.training
    model.eval()
    losses = []
    for batch in rows.split(BATCH):
        with mixed_precision():
            losses.append(next_token_loss(model, batch).item() * len(batch))
    model.train(was_training)
    return sum(losses) / len(rows)


@torch.no_grad()
def agreement(draft: LlamaForCausalLM, target: LlamaForCausalLM, rows: torch.Tensor) -> float:
    """Share of positions of `rows` at which both models rank the same token first."""
    same = [
        (draft(batch).logits.argmax(-1) == target(batch).logits.argmax(-1)).float()
        for batch in rows.split(BATCH)
    ]
    return torch.cat(same).mean().item()


@torch.no_grad()
def agreement_on_greedy(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, rows: torch.Tensor, new_tokens: int = 128
) -> float:
    """Share of the target's own greedy tokens that the draft ranks first, given the same text."""
    texts = continuations(target, rows[:, :PROMPT_TOKENS], new_tokens, temperature=0.0)
    guesses = draft(texts[:, :-1]).logits.argmax(-1)[:, PROMPT_TOKENS - 1 :]
    return (guesses == texts[:, PROMPT_TOKENS:]).float().mean().item()
