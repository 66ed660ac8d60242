"""Runs the whole recipe: corpus, tokenizer, target, draft, mixture, their files and manifest.
Results in the work folder are not made again; training resumes where it stopped."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedModel

import corpus
import evaluate
import gguf_weights
import llama_names as llama
import shapes
from distill import PROMPT_TOKENS, best_part, distillation_loss, sample_text
from edgespec_runtimes.gguf.file.header import read_header
from fit import Loss, device, fit, next_token_loss, windows
from mixture import COARSE, FINE, ExpertShape, upcycled, with_balance
from release import release, release_mixture
from to_gguf import convert
from tokenizer import train_tokenizer, write_tokens

SEED = 20240924
TARGET_NAME = "edgespec-target"
DRAFT_NAME = "edgespec-draft"
MIXTURE_NAME = "edgespec-mixture"
FINE_MIXTURE_NAME = "edgespec-fine-mixture"
# training times of the shipped models, on two shared cores; see the model card
TARGET_MINUTES, SAMPLING_MINUTES, DRAFT_MINUTES, MIXTURE_MINUTES = 65.0, 3.0, 21.0, 50.0


@dataclass(frozen=True)
class RecipeFolders:
    """Folders of results (`out`) and of intermediate files (`work`)."""

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


def prepare(place: RecipeFolders) -> None:
    """Corpus manifest, tokenizer and the token streams of both splits."""
    if place.tokens("held_out").exists():
        return
    root = corpus.standard_library()
    sources = corpus.list_sources(root)
    corpus.write_manifest(sources, place.out / "corpus.json")
    train_tokenizer(corpus.read_documents(root, sources, "train"), shapes.N_VOCAB).save(
        str(place.tokenizer)
    )
    tokenize(place, root, sources)


def tokenize(place: RecipeFolders, root: Path, sources: list[corpus.SourceFile]) -> None:
    tokenizer = Tokenizer.from_file(str(place.tokenizer))
    for split in ("train", "held_out"):
        documents = corpus.read_documents(root, sources, split)
        write_tokens(tokenizer, documents, place.tokens(split), SEED)


def prepare_shipped(place: RecipeFolders) -> None:
    """The token streams by the shipped tokenizer. Exits unless its corpus is installed."""
    root = corpus.standard_library()
    sources = corpus.list_sources(root)
    recorded = json.loads((place.out / "corpus.json").read_text())
    if [asdict(source) for source in sources] != recorded["files"]:
        raise SystemExit(f"the corpus is that of Python {recorded['python']}: train with that one")
    if not place.tokens("held_out").exists():
        tokenize(place, root, sources)


def mixed_lengths(streams: list[np.ndarray], seed: int) -> Iterator[torch.Tensor]:
    """Batches of 4096 tokens: three of 512-token windows, then one of the full context."""
    short = windows(streams, shapes.N_CONTEXT // 2, 8, seed)
    full = windows(streams, shapes.N_CONTEXT, 4, seed + 1)
    for source in cycle([short, short, short, full]):
        yield next(source)


def train_target(place: RecipeFolders, budget_s: float) -> None:
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


def train_draft(place: RecipeFolders, sampling_s: float, budget_s: float) -> None:
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


def train_mixture(place: RecipeFolders, target: LlamaForCausalLM, budget_s: float) -> None:
    """Upcycle the target, and distil it into the mixture that ships."""
    distil_mixture(place, MIXTURE_NAME, COARSE, target, budget_s)
    release_mixture(place.checkpoint(MIXTURE_NAME), place.tokenizer, place.out)


def train_fine_mixture(place: RecipeFolders, target: LlamaForCausalLM, budget_s: float) -> None:
    """The same with many small experts; it does not ship, and is written to the work folder."""
    name = FINE_MIXTURE_NAME
    distil_mixture(place, name, FINE, target, budget_s)
    out = place.work / f"{name}-q8_0.gguf"
    convert(place.checkpoint(name), place.tokenizer, out, name=name, kind="Q8_0")


def distil_mixture(
    place: RecipeFolders,
    name: str,
    shape: ExpertShape,
    target: LlamaForCausalLM,
    budget_s: float,
) -> None:
    torch.manual_seed(SEED)
    stream = np.load(place.tokens("train"))
    model = upcycled(target, shape, next(windows([stream], shapes.N_CONTEXT // 2, 32, SEED)))
    distil(place, name, model, target, with_balance(distillation_loss(target)), budget_s)


def distil(
    place: RecipeFolders,
    name: str,
    model: PreTrainedModel,
    target: LlamaForCausalLM,
    loss: Loss,
    budget_s: float,
) -> None:
    """Train a model of upcycled weights on the corpus, and save it as the checkpoint `name`."""
    rows = evaluate.held_out_windows(np.load(place.tokens("held_out")))[::4]
    fit(
        model,
        mixed_lengths([np.load(place.tokens("train"))], SEED),
        loss,
        budget_s=budget_s,
        folder=place.checkpoint(name),
        rate=0.5,  # it begins with trained weights
        held_out=lambda: {
            "held_out_loss": round(evaluate.held_out_loss(model, rows), 4),
            "agreement": round(evaluate.agreement(model, target, rows), 4),
        },
    )


def load(place: RecipeFolders, name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(place.checkpoint(name), dtype=torch.float32).to(
        device()
    )


def load_shipped(place: RecipeFolders, name: str) -> LlamaForCausalLM:
    """The weights of the shipped GGUF, as Q8_0 rounds them."""
    header = read_header(place.out / f"{name}-q8_0.gguf")
    return llama.model_of(header, gguf_weights.read(header)).to(device())


def measure(place: RecipeFolders) -> dict[str, float]:
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
        "--mixture-minutes", type=float, default=MIXTURE_MINUTES, help="0 makes no mixture"
    )
    parser.add_argument(
        "--mixture-only",
        action="store_true",
        help="begin with the target that --out has, and train nothing but the mixture",
    )
    parser.add_argument(
        "--fine-mixture-only",
        action="store_true",
        help="the same with 128 experts, into --work: that mixture does not ship",
    )
    parser.add_argument(
        "--export-python",
        type=Path,
        help="interpreter of an environment with the extra `export`; without it no ONNX is made",
    )
    options = parser.parse_args()
    place = RecipeFolders(options.out, options.work)
    for folder in (place.out, place.work):
        folder.mkdir(parents=True, exist_ok=True)
    if options.mixture_only or options.fine_mixture_only:
        prepare_shipped(place)
        train = train_fine_mixture if options.fine_mixture_only else train_mixture
        train(place, load_shipped(place, TARGET_NAME), 60.0 * options.mixture_minutes)
        return
    prepare(place)
    train_target(place, 60.0 * options.target_minutes)
    train_draft(place, 60.0 * options.sampling_minutes, 60.0 * options.draft_minutes)
    checkpoints = {
        role: place.checkpoint(name)
        for role, name in (("target", TARGET_NAME), ("draft", DRAFT_NAME))
    }
    release(checkpoints, place.tokenizer, place.out, place.work, options.export_python)
    if options.mixture_minutes:
        train_mixture(place, load(place, TARGET_NAME), 60.0 * options.mixture_minutes)
    print(json.dumps(measure(place), indent=2))


if __name__ == "__main__":
    main()
