"""The recipe, one command: corpus, tokenizer, target, draft, mixture, their files and manifest.
What a stage has left in the work folder is not made again; training resumes where it stopped."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

import corpus
import evaluate
import shapes
from distill import PROMPT_TOKENS, best_part, distillation_loss, sample_text
from fit import device, fit, next_token_loss, windows
from mixture import upcycled, with_balance
from release import release
from to_gguf import convert
from tokenizer import train_tokenizer, write_tokens

SEED = 20240924
TARGET_NAME = "edgespec-target"
DRAFT_NAME = "edgespec-draft"
MIXTURE_NAME = "edgespec-mixture"
# What the shipped pair was given, on two shared cores; see the model card.
TARGET_MINUTES, SAMPLING_MINUTES, DRAFT_MINUTES = 65.0, 3.0, 21.0


@dataclass(frozen=True)
class Workplace:
    """Where results go (`out`) and where intermediate files stay (`work`)."""

    out: Path
    work: Path

    def tokens(self, split: str) -> Path:
        return self.work / f"{split}.npy"

    @property
    def tokenizer(self) -> Path:
        return self.out / "tokenizer.json"

    @property
    def samples(self) -> Path:
        return self.work / "samples.npy"

    def checkpoint(self, name: str) -> Path:
        return self.work / name


def prepare(place: Workplace) -> None:
    """Corpus manifest, tokenizer and the token streams of both splits."""
    if place.tokens("held_out").exists():
        return
    root = corpus.standard_library()
    sources = corpus.list_sources(root)
    corpus.write_manifest(sources, place.out / "corpus.json")
    train = corpus.read_documents(root, sources, "train")
    tokenizer = train_tokenizer(train, shapes.N_VOCAB)
    tokenizer.save(str(place.tokenizer))
    write_tokens(tokenizer, train, place.tokens("train"), SEED)
    held_out = corpus.read_documents(root, sources, "held_out")
    write_tokens(tokenizer, held_out, place.tokens("held_out"), SEED)


def mixed_lengths(streams: list[np.ndarray], seed: int) -> Iterator[torch.Tensor]:
    """Batches of 4096 tokens: three of 512-token windows, then one of the full context."""
    short = windows(streams, shapes.N_CONTEXT // 2, 8, seed)
    full = windows(streams, shapes.N_CONTEXT, 4, seed + 1)
    for source in cycle([short, short, short, full]):
        yield next(source)


def train_target(place: Workplace, budget_s: float) -> None:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(shapes.TARGET).to(device())
    rows = evaluate.held_out_windows(np.load(place.tokens("held_out")))[::4]
    fit(
        model,
        mixed_lengths([np.load(place.tokens("train"))], SEED),
        next_token_loss,
        budget_s=budget_s,
        folder=place.checkpoint(TARGET_NAME),
        held_out=lambda: {"held_out_loss": round(evaluate.held_out_loss(model, rows), 4)},
    )


def train_draft(place: Workplace, sampling_s: float, budget_s: float) -> None:
    """Distil the target into the draft, on the corpus and on the target's own text in turn."""
    target = load(place, TARGET_NAME)
    stream = np.load(place.tokens("train"))
    prompts = windows([stream], PROMPT_TOKENS, 64, SEED)
    sample_text(target, prompts, place.samples, budget_s=sampling_s)
    torch.manual_seed(SEED)
    draft = best_part(target, shapes.DRAFT, next(windows([stream], 256, 16, SEED)))
    rows = evaluate.held_out_windows(np.load(place.tokens("held_out")))[::4]
    fit(
        draft,
        mixed_lengths([stream, np.load(place.samples)], SEED),
        distillation_loss(target),
        budget_s=budget_s,
        folder=place.checkpoint(DRAFT_NAME),
        rate=0.5,  # it begins with trained weights
        held_out=lambda: {"agreement": round(evaluate.agreement(draft, target, rows), 4)},
    )


def train_mixture(place: Workplace, budget_s: float) -> None:
    """Upcycle the target, and let the mixture learn to predict as it does."""
    target = load(place, TARGET_NAME)
    torch.manual_seed(SEED)
    model = upcycled(target)
    rows = evaluate.held_out_windows(np.load(place.tokens("held_out")))[::4]
    fit(
        model,
        mixed_lengths([np.load(place.tokens("train"))], SEED),
        with_balance(distillation_loss(target)),
        budget_s=budget_s,
        folder=place.checkpoint(MIXTURE_NAME),
        rate=0.5,  # it begins with trained weights
        held_out=lambda: {
            "held_out_loss": round(evaluate.held_out_loss(model, rows), 4),
            "agreement": round(evaluate.agreement(model, target, rows), 4),
        },
    )
    file = place.work / f"{MIXTURE_NAME}-q8_0.gguf"
    convert(place.checkpoint(MIXTURE_NAME), place.tokenizer, file, name=MIXTURE_NAME, kind="Q8_0")


def load(place: Workplace, name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(place.checkpoint(name), dtype=torch.float32).to(
        device()
    )


def measure(place: Workplace) -> dict[str, float]:
    """The model card's figures, on all held-out windows."""
    target, draft = load(place, TARGET_NAME).eval(), load(place, DRAFT_NAME).eval()
    rows = evaluate.held_out_windows(np.load(place.tokens("held_out")))
    return {
        "target_held_out_loss": evaluate.held_out_loss(target, rows),
        "draft_held_out_loss": evaluate.held_out_loss(draft, rows),
        "agreement_on_held_out": evaluate.agreement(draft, target, rows),
        "agreement_on_greedy": evaluate.agreement_on_greedy(draft, target, rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the shipped files")
    parser.add_argument("--work", type=Path, required=True, help="folder of intermediate files")
    parser.add_argument("--target-minutes", type=float, default=TARGET_MINUTES)
    parser.add_argument("--sampling-minutes", type=float, default=SAMPLING_MINUTES)
    parser.add_argument("--draft-minutes", type=float, default=DRAFT_MINUTES)
    parser.add_argument(
        "--mixture-minutes",
        type=float,
        default=0.0,
        help="for a mixture of experts, which is left in the work folder (default: none is made)",
    )
    parser.add_argument(
        "--export-python",
        type=Path,
        help="interpreter of an environment with the extra `export`; without it no ONNX is made",
    )
    options = parser.parse_args()
    place = Workplace(options.out, options.work)
    for folder in (place.out, place.work):
        folder.mkdir(parents=True, exist_ok=True)
    prepare(place)
    train_target(place, 60.0 * options.target_minutes)
    train_draft(place, 60.0 * options.sampling_minutes, 60.0 * options.draft_minutes)
    if options.mixture_minutes:
        train_mixture(place, 60.0 * options.mixture_minutes)
    checkpoints = {
        role: place.checkpoint(name)
        for role, name in (("target", TARGET_NAME), ("draft", DRAFT_NAME))
    }
    release(checkpoints, place.tokenizer, place.out, place.work, options.export_python)
    print(json.dumps(measure(place), indent=2))


if __name__ == "__main__":
    main()
