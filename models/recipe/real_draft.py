"""Makes a draft for a real model, SmolLM2-135M-Instruct, from text that this model writes itself.
Every stage continues where it stopped: the texts, the training, the GGUF file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

import gguf_llama
from fit import ADAMW_RATE, MUON_RATE, SAVE_EVERY_S, schedule
from gguf_llama import Llama
from questions import dialogues
from self_text import text_files, write_texts

SEED = 0
LAYERS = (0, 1, 29)
"""Layers of the target that the draft begins with: untrained, no choice of three was of use."""
BATCH = 8
"""Rows of text in a step."""
HELD_OUT_ROWS = 24
N_LIKELY = 12
"""Likeliest next tokens of a place that are learnt."""
TEXT_MINUTES, TRAINING_MINUTES = 20.0, 22.0
ABOUT = {
    "name": "SmolLM2-135M-Instruct draft",
    "organization": "edgespec",
    "license": "apache-2.0",
    "description": "Distilled from SmolLM2-135M-Instruct on its own text by models/recipe",
}

Model = TypeVar("Model", bound=torch.nn.Module)
Loss = Callable[[Model, "RowsOfText"], tuple[torch.Tensor, torch.Tensor]]
"""A model's loss on texts, and the shares of tokens that it and the target rank first."""


@dataclass(frozen=True)
class RowsOfText:
    """Rows of the target's text, with its likeliest next tokens and their log-probabilities."""

    tokens: torch.Tensor
    ids: torch.Tensor
    chances: torch.Tensor
    features: torch.Tensor
    """Inputs of some of its layers."""

    def rows(self, chosen: torch.Tensor | slice) -> RowsOfText:
        return RowsOfText(
            self.tokens[chosen].long(),
            self.ids[chosen].long(),
            self.chances[chosen],
            self.features[chosen],
        )

    def after_first(self) -> RowsOfText:
        """These rows without their first tokens."""
        return RowsOfText(*(x[:, 1:] for x in (self.tokens, self.ids, self.chances, self.features)))


def load_texts(folder: Path) -> RowsOfText:
    files = [np.load(file) for file in text_files(folder)]
    names = ("tokens", "ids", "chances", "features")
    parts = (np.concatenate([file[name] for file in files]) for name in names)
    tokens, ids, chances, features = (torch.from_numpy(part) for part in parts)
    return RowsOfText(tokens.int(), ids.int(), chances, features.view(torch.bfloat16))


class Nats(torch.autograd.Function):
    """Kullback-Leibler divergence of softmax(hidden @ rows.T) from what is wanted, by place, and
    the token that it ranks first; places in parts, since all of their logits fill the memory."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        hidden: torch.Tensor,
        rows: torch.Tensor,
        places: torch.Tensor,
        wanted: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slope = torch.empty_like(hidden)
        nats, first = torch.empty(len(hidden)), torch.empty(len(hidden), dtype=torch.long)
        for part in torch.arange(len(hidden)).split(128):
            here = slice(int(part[0]), int(part[-1]) + 1)
            offered = (hidden[here] @ rows.T).float()
            first[here] = offered.argmax(-1)
            offered -= offered.logsumexp(-1, keepdim=True)
            chances = wanted[here].exp()
            nats[here] = (chances * (wanted[here] - offered.gather(-1, places[here]))).sum(-1)
            offered.exp_().scatter_add_(-1, places[here], -chances)
            slope[here] = offered.to(rows.dtype) @ rows
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(first)
        return nats, first

    @staticmethod
    def backward(ctx, of_nats, _):  # type: ignore[no-untyped-def]
        (slope,) = ctx.saved_tensors
        return of_nats[:, None].to(slope.dtype) * slope, None, None, None


@dataclass(frozen=True)
class Wanted:
    """The target's probabilities of the next tokens of some rows of text, over the tokens that are
    among its N_LIKELY likeliest anywhere in these rows: a tenth of the vocabulary's work."""

    rows: torch.Tensor
    places: torch.Tensor
    chances: torch.Tensor

    @staticmethod
    def of(texts: RowsOfText, embeddings: torch.Tensor) -> Wanted:
        chances = texts.chances[..., :N_LIKELY].float()
        known, places = texts.ids[..., :N_LIKELY].unique(return_inverse=True)
        rows = embeddings[known].detach().bfloat16()
        return Wanted(rows, places, chances - chances.logsumexp(-1, keepdim=True))

    def compare(self, hidden: torch.Tensor, where: slice | torch.Tensor) -> torch.Tensor:
        """Nats lost and the share of tokens that both rank first, of hidden states [rows, places,
        values] that stand at these places."""
        places, chances = (x[:, where].flatten(0, 1) for x in (self.places, self.chances))
        hidden = hidden.bfloat16().flatten(0, 1)
        nats, first = Nats.apply(hidden, self.rows, places, chances)
        return torch.stack([nats.mean(), (first == places[:, 0]).float().mean()])


def divergence(draft: Llama, texts: RowsOfText) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the target in nats per token, and the share of tokens that both rank
    first."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = draft(texts.tokens)
    lost, agreed = Wanted.of(texts, draft.token_embd).compare(hidden, slice(None))
    return lost, agreed.detach()[None]


def batches(n_rows: int, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless row numbers, every epoch in another order."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(n_rows, generator=rng).split(size)


def train(
    draft: Model,
    texts: RowsOfText,
    folder: Path,
    budget_s: float,
    loss: Loss[Model],
    batch: int,
    rate: float = MUON_RATE,
) -> None:
    """Train for `budget_s` seconds in all runs together; `state.pt` lets the next one go on."""
    inner = [w for w in draft.parameters() if w.ndim == 2 and w.requires_grad]
    outer = [w for w in draft.parameters() if w.ndim == 1]
    steppers = [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.02),
        torch.optim.AdamW(outer, lr=ADAMW_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rates = [stepper.param_groups[0]["lr"] for stepper in steppers]
    held_out, learnt = texts.rows(slice(0, HELD_OUT_ROWS)), texts.rows(slice(HELD_OUT_ROWS, None))
    rows = batches(len(learnt.tokens), batch, SEED)
    state, step, spent_s = folder / "state.pt", 0, 0.0
    if state.exists():
        saved = torch.load(state)
        step, spent_s = saved["step"], saved["spent_s"]
        draft.load_state_dict(saved["draft"])
        for stepper, values in zip(steppers, saved["optimizers"], strict=True):
            stepper.load_state_dict(values)
        for _ in range(step):
            next(rows)
    started, saved_s = time.monotonic() - spent_s, spent_s
    while spent_s < budget_s:
        for stepper, highest in zip(steppers, rates, strict=True):
            stepper.param_groups[0]["lr"] = highest * schedule(spent_s / budget_s)
        lost, agreed = loss(draft, learnt.rows(next(rows)))
        lost.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        step, spent_s = step + 1, time.monotonic() - started
        if step % 5 == 0:
            entry = {"step": step, "s": round(spent_s), "loss": round(lost.item(), 3)}
            print(json.dumps(entry | {"agreement": rounded(agreed)}), flush=True)
        if spent_s - saved_s > SAVE_EVERY_S or spent_s >= budget_s:
            saved_s = spent_s
            draft.eval()
            with torch.no_grad():
                lost, agreed = loss(draft, held_out)
            draft.train()
            print(f"held out: {lost:.3f} nats, agreement {rounded(agreed)}", flush=True)
            content = {"step": step, "spent_s": spent_s, "draft": draft.state_dict()}
            content["optimizers"] = [stepper.state_dict() for stepper in steppers]
            unfinished = state.with_suffix(".part")
            torch.save(content, unfinished)
            unfinished.replace(state)


def rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def new_parser(
    description: str | None, text_minutes: float, training_minutes: float
) -> argparse.ArgumentParser:
    """A parser of the files, times and threads of a recipe for the real model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", type=Path, required=True, help="SmolLM2's GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--work", type=Path, required=True, help="folder of intermediate files")
    parser.add_argument("--text-minutes", type=float, default=text_minutes)
    parser.add_argument("--training-minutes", type=float, default=training_minutes)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


def main() -> None:
    parser = new_parser(__doc__, TEXT_MINUTES, TRAINING_MINUTES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.work / "texts"
    questions = dialogues(SEED)
    write_texts(options.target, questions, folder, 60 * options.text_minutes)
    texts = load_texts(folder)
    print(f"{texts.tokens.numel():,} tokens", flush=True)
    draft = gguf_llama.read(options.target, LAYERS)
    draft.token_embd.requires_grad_(False)  # the target's own: nobody needs a copy of it
    train(draft, texts, options.work, 60 * options.training_minutes, divergence, BATCH)
    gguf_llama.write(draft, options.out, options.target, ABOUT, "Q8_0")


if __name__ == "__main__":
    main()
