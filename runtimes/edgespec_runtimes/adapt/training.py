"""Distils a target into its draft, on kept texts. Knows samples and a model; nothing of files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from transformers import LlamaForCausalLM

from edgespec_runtimes.adapt.lessons import Lesson

BATCH_TOKENS = 2048
"""Approximate number of tokens per step."""
EPOCHS = 8
RATE_TIMES_WIDTH = 0.2
"""Learning rate times the width of the model."""
WARM_UP = 0.05
"""Share of the steps with a rising learning rate."""
LARGEST_GRADIENT = 1.0


def train(
    model: LlamaForCausalLM,
    lessons: Sequence[Lesson],
    report: Callable[[float], None],
    epochs: int = EPOCHS,
    seed: int = 0,
) -> float:
    """Train `model` in place; returns the mean loss of the last epoch in nats per token.

    `report` is called with the share that is done.
    """
    random = np.random.default_rng(seed)
    plan = [batch for _ in range(epochs) for batch in _batches(lessons, random)]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=RATE_TIMES_WIDTH / model.config.hidden_size,
        betas=(0.9, 0.95),
        weight_decay=0.0,
    )
    model.train()
    losses = []
    for step, batch in enumerate(plan):
        for group in optimizer.param_groups:
            group["lr"] = RATE_TIMES_WIDTH / model.config.hidden_size * _schedule(step / len(plan))
        loss = _loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        report((step + 1) / len(plan))
    last = losses[-max(1, len(losses) // epochs) :]
    return sum(last) / len(last) if last else math.nan


def _batches(lessons: Sequence[Lesson], random: np.random.Generator) -> Iterator[list[Lesson]]:
    """The batches of an epoch in random order, each of about BATCH_TOKENS tokens."""
    batch: list[Lesson] = []
    for index in random.permutation(len(lessons)):
        batch.append(lessons[index])
        if sum(len(lesson.tokens) for lesson in batch) >= BATCH_TOKENS:
            yield batch
            batch = []
    if batch:
        yield batch


def _loss(model: LlamaForCausalLM, batch: Sequence[Lesson]) -> torch.Tensor:
    """Cross-entropy of the draft with the target's predictions, in nats per answer token."""
    length = max(len(lesson.tokens) for lesson in batch)
    tokens = np.zeros((len(batch), length), np.int64)
    for row, lesson in zip(tokens, batch, strict=True):
        row[: len(lesson.tokens)] = lesson.tokens  # padding is at the end and has no effect
    hidden = model.model(torch.from_numpy(tokens), use_cache=False).last_hidden_state
    total, n_places = torch.zeros(()), 0
    for row, lesson in zip(hidden, batch, strict=True):
        offered = model.lm_head(row[torch.from_numpy(lesson.places)]).float().log_softmax(-1)
        taught = offered.gather(1, torch.from_numpy(lesson.said))
        total = total - (torch.from_numpy(lesson.shares) * taught).sum()
        n_places += len(lesson.places)
    return total / n_places


def _schedule(progress: float) -> float:
    """Learning rate factor: linear warm-up, then cosine decay."""
    if progress < WARM_UP:
        return (progress + 1e-3) / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (progress - WARM_UP) / (1.0 - WARM_UP)))
