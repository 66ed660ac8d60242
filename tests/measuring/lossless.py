"""Counts where edgespec's text differs from llama.cpp's own, and by what margin it was decided.

    python tests/measure.py lossless TARGET DRAFT [--prompts 20] [--tokens 64] [--between-own]

First among its own texts: with a draft and without, at two budgets, of short and of long prompts.
Then, unless only those are asked for, against llama.cpp:

Greedy against token-by-token decoding of the same file, each pacer and each budget at least once;
sampled with the draft against sampled without it. A difference is allowed where rounding decides:
the margin of the two best logits is below twice the difference that the same logits show between
both ways. After a difference the comparison goes on from the reference's token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from reference import LlamaCpp, Reference

PACERS = ("llmcad", "best-first", "linear")
N_CTX = 1024
LONG_TOKENS = 300
"""Tokens of a long prompt: attention has other kernels from 64 rows and from 512 cells on."""
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budgets", nargs=2, default=("300M", "400M"))
    parser.add_argument("--between-own", action="store_true")
    parser.add_argument("--threads", type=int, default=None)


def measure(args: argparse.Namespace) -> None:
    lines = (embedded_pair().target.parent / "prompts.jsonl").read_text().splitlines()
    texts = [json.loads(line)["prompt"] for line in lines[: args.prompts]]
    with session.load(LoadSettings(model=args.draft, ctx_size=N_CTX)) as any_model:
        prompts = [any_model.encode(text) for text in texts]
    compare_own(args, prompts)
    if args.between_own:
        return
    with LlamaCpp(args.target, N_CTX, n_threads=2) as llama_cpp:
        references = [llama_cpp.greedy(prompt, args.tokens) for prompt in prompts]
    n_tokens = sum(len(reference.tokens) for reference in references)
    print(f"{len(prompts)} prompts, {n_tokens} tokens", flush=True)

    for pacer, budget in zip(PACERS, cycle(args.budgets), strict=False):
        rules = EngineSettings(pacer=pacer, fallback="fixed", step_aside=False)
        settings = LoadSettings(
            model=args.target, draft=args.draft, memory_budget=budget, ctx_size=N_CTX
        )
        found = ReferenceComparison()
        with session.load(settings, rules) as drafted:
            for prompt, reference in zip(prompts, references, strict=True):
                found.compare(drafted, prompt, reference)
        print(f"greedy, {budget}, {pacer}: {found.summary()}", flush=True)

    settings = LoadSettings(
        model=args.target, draft=args.draft, memory_budget=args.budgets[0], ctx_size=N_CTX
    )
    alone = sampled(settings.model_copy(update={"draft": None}), prompts, args.tokens)
    drafted_tokens = sampled(settings, prompts, args.tokens)
    compare_sampled(alone, drafted_tokens)


def compare_own(args: argparse.Namespace, prompts: Sequence[Sequence[int]]) -> None:
    """Texts of the first half of the prompts as they are, and of the others made long."""
    half, everything = len(prompts) // 2, [token for prompt in prompts for token in prompt]
    wanted = [*prompts[:half], *([*everything, *p][-LONG_TOKENS:] for p in prompts[half:])]
    lengths = [len(prompt) for prompt in wanted]
    print(f"{len(wanted)} prompts of {min(lengths)} to {max(lengths)} tokens", flush=True)
    for what, sampling in (("greedy", {}), ("sampled", SAMPLED)):
        texts: dict[tuple[str, bool], list[tuple[int, ...]]] = {}
        for budget in args.budgets:
            for drafts in (False, True):
                settings = LoadSettings(
                    model=args.target,
                    draft=args.draft if drafts else None,
                    memory_budget=budget,
                    ctx_size=N_CTX,
                    threads=args.threads,
                )
                # a process of its own, so that none inherits memory, and the budgets mean the same
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    job = process.submit(own_texts, settings, sampling, wanted, args.tokens)
                    pages, texts[budget, drafts] = job.result()
                print(f"  {what}, {budget} ({pages}), drafts: {drafts}", flush=True)
        first, second = args.budgets
        for title, one, other in (
            (f"with and without a draft at {first}", (first, False), (first, True)),
            (f"with and without a draft at {second}", (second, False), (second, True)),
            ("between the budgets, without a draft", (first, False), (second, False)),
            ("between the budgets, with a draft", (first, True), (second, True)),
        ):
            pairs = zip(texts[one], texts[other], strict=True)
            differ = [i for i, (left, right) in enumerate(pairs) if left != right]
            print(
                f"{what}, {title}: {len(differ)} of {len(wanted)} texts differ {differ}", flush=True
            )


def own_texts(
    settings: LoadSettings,
    sampling: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
) -> tuple[str, list[tuple[int, ...]]]:
    chosen = SamplingParams(**sampling)
    with session.load(settings, EngineSettings(step_aside=False)) as running:
        pages = "paged" if running.plan.paged else "resident"
        return pages, [running.generate(p, chosen, n_tokens).tokens for p in prompts]


def compare_sampled(alone: Sequence[Sampled], drafted: Sequence[Sampled]) -> None:
    """Both runs meet the same draws, so the first difference is as small as its logits' offset."""
    offsets = {}
    for i, (one, other) in enumerate(zip(alone, drafted, strict=True)):
        pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
        step = next((j for j, (a, b) in pairs if a != b), None)
        if step is not None:
            rivals = [one.tokens[step], other.tokens[step]]
            offset = np.abs(one.logits[step][rivals] - other.logits[step][rivals]).max()
            offsets[f"text {i}, token {step}"] = round(float(offset), 4)
    print(
        f"sampled (temperature 0.8, top-p 0.95, seed 7): {len(offsets)} of {len(alone)} texts "
        "differ between with and without draft; offset of the two tokens' logits where they part: "
        f"{offsets}"
    )


@dataclass(frozen=True)
class Sampled:
    tokens: tuple[int, ...]
    logits: list[np.ndarray]


class ReferenceComparison:
    """Tokens at which edgespec differs from the reference, and how far its logits were off."""

    def __init__(self) -> None:
        self.margins: list[float] = []
        self.offsets: list[float] = []
        """Difference of the two highest logits, for each token."""

    def compare(
        self, running: session.Session, prompt: Sequence[int], reference: Reference
    ) -> None:
        start = 0
        while start < len(reference.tokens):
            rest = reference.tokens[start:]
            with watched_logits() as seen:
                result = running.generate(
                    [*prompt, *reference.tokens[:start]], max_tokens=len(rest)
                )
            agreed = next(
                (i for i, (a, b) in enumerate(zip(result.tokens, rest, strict=False)) if a != b),
                len(rest),
            )
            for step, logits in enumerate(seen[: agreed + 1], start):
                offset = np.abs(logits[reference.leaders[step]] - reference.leading[step])
                self.offsets.append(float(offset.max()))
            if agreed < len(rest):
                self.margins.append(reference.margin(start + agreed))
            start += agreed + 1

    def summary(self) -> str:
        rounding = max(self.offsets)
        wrong = [margin for margin in self.margins if margin > 2 * rounding]
        shown = ", ".join(f"{margin:.4f}" for margin in self.margins) or "none"
        return (
            f"{len(self.margins)} differences (margins: {shown}); logits off by at most "
            f"{rounding:.4f}, median {np.median(self.offsets):.6f}; "
            + (f"{len(wrong)} BEYOND ROUNDING: {wrong}" if wrong else "none beyond rounding")
        )


@contextmanager
def watched_logits() -> Iterator[list[np.ndarray]]:
    """The logits from which the sampler picks, in order."""
    seen: list[np.ndarray] = []
    pick = Sampler.pick

    def watching(sampler: Sampler, logits: np.ndarray) -> int:
        seen.append(logits.copy())
        return pick(sampler, logits)

    Sampler.pick = watching  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Sampler.pick = pick  # type: ignore[method-assign]


def sampled(
    settings: LoadSettings, prompts: Sequence[Sequence[int]], n_tokens: int
) -> list[Sampled]:
    texts = []
    with session.load(settings, EngineSettings(step_aside=False)) as running:
        for prompt in prompts:
            with watched_logits() as seen:
                result = running.generate(prompt, SamplingParams(**SAMPLED), n_tokens)
            texts.append(Sampled(result.tokens, seen))
    return texts
