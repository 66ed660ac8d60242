"""Distils a target into its draft, in a GGUF file, on texts that the target wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from edgespec.errors import UsageError
from edgespec.values import TrainingText
from edgespec_runtimes.adapt import adaptable, weights
from edgespec_runtimes.adapt.lessons import Lesson, lessons_of
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.validation import validate

Tensors = Mapping[str, torch.Tensor]

BATCH_TOKENS = 2048
"""Approximate number of tokens per step."""
EPOCHS = 8
RATE_TIMES_WIDTH = 0.2
"""Learning rate times the width of the model."""
WARM_UP = 0.05
"""Share of the steps with a rising learning rate."""
LARGEST_GRADIENT = 1.0


def adapt(
    source: Path,
    out: Path,
    name: str,
    texts: Sequence[TrainingText],
    n_threads: int,
    report: Callable[[float], None],
) -> float:
    """Train the draft `source` on `texts` and write it to `out` under `name`; returns the mean loss
    of the last epoch in nats per token.

    Sets the threads of the whole process. `report` is called with the share that is done. Raises
    ModelError for a model that cannot be trained, UsageError for texts without training data.
    """
    header = read_header(source)
    validate(header)
    adaptable.check(header)
    torch.set_num_threads(n_threads)
    read = weights.read(header)
    n_vocab = len(read["token_embd.weight"])
    lessons = [lesson for text in texts for lesson in lessons_of(text, n_vocab)]
    if not lessons:
        raise UsageError(f"the texts have tokens that {header.name} does not know")
    tensors = {key: torch.from_numpy(values).requires_grad_() for key, values in read.items()}
    loss = _train(header, tensors, lessons, report)
    found = {key: values.detach().numpy() for key, values in tensors.items()}
    weights.write(header, found, out, name)
    return loss


def _train(
    header: GgufFile,
    tensors: Tensors,
    lessons: Sequence[Lesson],
    report: Callable[[float], None],
) -> float:
    random = np.random.default_rng(0)
    plan = [batch for _ in range(EPOCHS) for batch in _batches(lessons, random)]
    rate, parameters = RATE_TIMES_WIDTH / header.embedding_length, [*tensors.values()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    for step, batch in enumerate(plan):
        for group in optimizer.param_groups:
            group["lr"] = rate * _schedule(step / len(plan))
        loss = _loss(header, tensors, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, LARGEST_GRADIENT)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        report((step + 1) / len(plan))
    last = losses[-max(1, len(losses) // EPOCHS) :]
    return sum(last) / len(last)


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


def _loss(header: GgufFile, tensors: Tensors, batch: Sequence[Lesson]) -> torch.Tensor:
    """Cross-entropy of the draft with the target's distribution, in nats per answer token."""
    length = max(len(lesson.tokens) for lesson in batch)
    tokens = np.zeros((len(batch), length), np.int64)
    for row, lesson in zip(tokens, batch, strict=True):
        row[: len(lesson.tokens)] = lesson.tokens  # padding is at the end and has no effect
    hidden = hidden_states(header, tensors, torch.from_numpy(tokens))
    total, n_places = torch.zeros(()), 0
    for row, lesson in zip(hidden, batch, strict=True):
        offered = logits(tensors, row[torch.from_numpy(lesson.places)]).log_softmax(-1)
        taught = offered.gather(1, torch.from_numpy(lesson.said))
        total = total - (torch.from_numpy(lesson.shares) * taught).sum()
        n_places += len(lesson.places)
    return total / n_places


def _schedule(progress: float) -> float:
    """Learning rate factor: linear warm-up, then cosine decay."""
    if progress < WARM_UP:
        return (progress + 1e-3) / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (progress - WARM_UP) / (1.0 - WARM_UP)))


def hidden_states(header: GgufFile, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """The normed last hidden states [batch, length, width] of `tokens` [batch, length], by a LLaMA;
    `adaptable.check` must have accepted the header. GGUF's rotary pairs are neighbours."""
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
