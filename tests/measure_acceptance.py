"""Prints the tokens of a pass by acceptance rule, temperature and kind of prompt.

The last column says how many texts are not the target's own.

    python tests/measure_acceptance.py TARGET DRAFT PROMPTS [PROMPTS ...] [--count 6] [--tokens 64]

Counts, no seconds: every pass verifies as many guesses as it may, all of them the draft's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from edgespec.cli.invocation import read_prompts
from edgespec.engine.engine import Engine
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.session.loading import LoadedModels, open_models
from edgespec.settings.config import KEPT_BY, AcceptanceName, FallbackName, LoadSettings
from edgespec.values import GenerationResult
from engine_cases import finish

TEMPERATURES = (0.0, 0.6, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=6, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--guesses", type=int, default=16, help="verified by a pass, at most")
    parser.add_argument("--fallback", choices=list(FallbackName), default=FallbackName.FULL)
    parser.add_argument("--show", action="store_true", help="print lossy texts beside the target's")
    args = parser.parse_args()

    files = {path.stem: read_prompts(path)[: args.count] for path in args.prompts}
    load = LoadSettings(model=args.target, draft=args.draft, ctx_size=1024)
    print("| T | rule | keeps |", " | ".join(files), "| other texts |")
    print("| --- " * (4 + len(files)), "|", sep="")
    with open_models(load, EngineSettings(draft_max=args.guesses)) as models:
        for temperature in TEMPERATURES:
            own = [texts(models, args, prompts, temperature) for prompts in files.values()]
            for rule in KEPT_BY:
                results = [
                    texts(models, args, prompts, temperature, rule) for prompts in files.values()
                ]
                print_row(temperature, rule, own, results)
                if args.show:
                    show(own, results)


def texts(
    models: LoadedModels,
    args: argparse.Namespace,
    prompts: Sequence[str],
    temperature: float,
    rule: AcceptanceName | None = None,
) -> list[GenerationResult]:
    """A text of each prompt by a rule, or of the target alone."""
    settings = EngineSettings(
        acceptance=rule or AcceptanceName.EXACT_REPLAY,
        fallback=args.fallback,
        draft_max=args.guesses,
        lookup=False,
        overlap=False,
        step_aside=False,
    )
    draft = models.draft if rule else None
    with Engine(models.target, draft, settings) as engine:
        return [
            finish(
                engine.generate(
                    models.target.vocabulary.encode(prompt),
                    SamplingParams(temperature=temperature, seed=seed),
                    args.tokens,
                )
            )
            for seed, prompt in enumerate(prompts)
        ]


def print_row(
    temperature: float,
    rule: AcceptanceName,
    own: Sequence[Sequence[GenerationResult]],
    results: Sequence[Sequence[GenerationResult]],
) -> None:
    rates = []
    n_other = 0
    for its_own, its in zip(own, results, strict=True):
        rounds = sum(result.speculation.rounds for result in its)
        rates.append(f"{sum(len(result.tokens) for result in its) / rounds:.2f}")
        n_other += sum(a.tokens != b.tokens for a, b in zip(its_own, its, strict=True))
    n_texts = sum(map(len, results))
    row = f"| {temperature:g} | {rule} | {KEPT_BY[rule]} | {' | '.join(rates)} |"
    print(row, f"{n_other} of {n_texts} |", flush=True)


def show(
    own: Sequence[Sequence[GenerationResult]], results: Sequence[Sequence[GenerationResult]]
) -> None:
    """Print the first text of each kind that is another one."""
    for its_own, its in zip(own, results, strict=True):
        for one, other in zip(its_own, its, strict=True):
            if one.tokens != other.tokens:
                print(f"    target: {one.text[:160]!r}\n    rule:   {other.text[:160]!r}")
                break


if __name__ == "__main__":
    main()
