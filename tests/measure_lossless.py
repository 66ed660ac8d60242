"""Counts where edgespec's text differs from llama.cpp's own, and by what margin it was decided.

    python tests/measure_lossless.py TARGET DRAFT [--prompts 20] [--tokens 64]

Greedy against token-by-token decoding of the same file, each pacer under each budget; sampled with
the draft against sampled without it. A difference is allowed where rounding decides: the margin of
the two best logits is below twice the difference that batching alone makes. After a difference the
comparison goes on from the reference's token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec import session
from edgespec.config import LoadSettings
from edgespec.engine import EngineSettings
from edgespec.resources import embedded_pair
from edgespec.sampling import SamplingParams
from reference import LlamaCpp, Reference

PACERS = ("llmcad", "best-first", "linear")
N_CTX = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budgets", nargs=2, default=("240M", "320M"))
    args = parser.parse_args()

    lines = (embedded_pair().target.parent / "prompts.jsonl").read_text().splitlines()
    texts = [json.loads(line)["prompt"] for line in lines[: args.prompts]]
    with session.load(LoadSettings(model=args.draft, ctx_size=N_CTX)) as any_model:
        prompts = [any_model.encode(text) for text in texts]
    with LlamaCpp(args.target, N_CTX, n_threads=2) as llama_cpp:
        references = [llama_cpp.greedy(prompt, args.tokens) for prompt in prompts]
        rounding = max(
            llama_cpp.rounding([*prompt, *reference.tokens][:48])
            for prompt, reference in zip(prompts, references, strict=True)
        )
    n_tokens = sum(len(reference.tokens) for reference in references)
    print(f"{len(prompts)} prompts, {n_tokens} tokens; batching moves a logit by {rounding:.4f}")

    for budget in args.budgets:
        for pacer in PACERS:
            rules = EngineSettings(pacer=pacer, step_aside=False)
            settings = LoadSettings(
                model=args.target, draft=args.draft, memory_budget=budget, ctx_size=N_CTX
            )
            with session.load(settings, rules) as drafted:
                margins = [
                    margin
                    for prompt, reference in zip(prompts, references, strict=True)
                    for margin in differences(drafted, prompt, reference)
                ]
            report(f"greedy, {budget}, {pacer}", margins, rounding)

    settings = LoadSettings(
        model=args.target, draft=args.draft, memory_budget=args.budgets[0], ctx_size=N_CTX
    )
    alone = sampled(settings.model_copy(update={"draft": None}), prompts, args.tokens)
    drafted_tokens = sampled(settings, prompts, args.tokens)
    differing = [
        (i, next(j for j, (a, b) in enumerate(zip(*pair, strict=False)) if a != b))
        for i, pair in enumerate(zip(alone, drafted_tokens, strict=True))
        if pair[0] != pair[1]
    ]
    print(
        f"sampled (temperature 0.8, top-p 0.95, seed 7): {len(differing)} of {len(prompts)} texts "
        f"differ between with and without draft {differing or ''}"
    )


def differences(
    running: session.Session, prompt: Sequence[int], reference: Reference
) -> list[float]:
    """Margins of the reference's choices that edgespec made otherwise."""
    margins = []
    start = 0
    while start < len(reference.tokens):
        rest = reference.tokens[start:]
        result = running.generate([*prompt, *reference.tokens[:start]], max_tokens=len(rest))
        agreed = next(
            (i for i, (a, b) in enumerate(zip(result.tokens, rest, strict=False)) if a != b), None
        )
        if agreed is None:
            assert len(result.tokens) == len(rest), "the text ended early"
            break
        margins.append(reference.margins[start + agreed])
        start += agreed + 1
    return margins


def report(what: str, margins: Sequence[float], rounding: float) -> None:
    allowed: Callable[[float], bool] = lambda margin: margin <= 2 * rounding  # noqa: E731
    wrong = [margin for margin in margins if not allowed(margin)]
    shown = ", ".join(f"{margin:.4f}" for margin in margins)
    verdict = "WRONG: " + ", ".join(f"{m:.4f}" for m in wrong) if wrong else "all within rounding"
    print(f"{what}: {len(margins)} differences ({shown}) {verdict if margins else ''}", flush=True)


def sampled(
    settings: LoadSettings, prompts: Sequence[Sequence[int]], n_tokens: int
) -> list[tuple[int, ...]]:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
    with session.load(settings, EngineSettings(step_aside=False)) as running:
        return [running.generate(prompt, sampling, n_tokens).tokens for prompt in prompts]


if __name__ == "__main__":
    main()
