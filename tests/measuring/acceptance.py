"""Prints the tokens of a pass by acceptance rule, temperature and kind of prompt.

The last column says how many texts are not the target's own.

    python tests/measure.py acceptance TARGET DRAFT PROMPTS [PROMPTS ...] [--count 6] [--tokens 64]

Counts, no seconds: every pass verifies as many guesses as it may, all of them the draft's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from edgespec.cli.invocation import read_prompts
from edgespec.engine.settings import EngineSettings
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import LoadedModels, open_models
from edgespec.settings.config import LoadSettings
from edgespec.values import GenerationResult
from engine_cases import AskedEngine as Engine
from engine_cases import finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=6, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("-c", "--ctx-size", type=int, default=1024)
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.0, 0.6, 1.0))
    names = list(ACCEPTANCE_RULES)
    parser.add_argument("--rules", nargs="+", choices=names, default=names)
    parser.add_argument("--guesses", type=int, default=16, help="verified by a pass, at most")


def measure(args: argparse.Namespace) -> None:
    files = {path.stem: read_prompts(path)[: args.count] for path in args.prompts}
    load = LoadSettings(model=args.target, draft=args.draft, ctx_size=args.ctx_size)
    print("| T | rule |", " | ".join(files), "| other texts |")
    print("| --- " * (3 + len(files)), "|", sep="")
    with open_models(load, EngineSettings(draft_max=args.guesses)) as models:
        for temperature in args.temperatures:
            own = [texts(models, args, prompts, temperature) for prompts in files.values()]
            for rule in args.rules:
                results = [
                    texts(models, args, prompts, temperature, rule) for prompts in files.values()
                ]
                print_row(temperature, rule, own, results)


def texts(
    models: LoadedModels,
    args: argparse.Namespace,
    prompts: Sequence[str],
    temperature: float,
    rule: str | None = None,
) -> list[GenerationResult]:
    """A text of each prompt by a rule, or of the target alone."""
    settings = EngineSettings(
        draft_max=args.guesses,
        lookup=False,
        fallback="full",
        no_overlap=True,
        step_aside=False,
    )
    draft = models.draft if rule else None
    accepting = ACCEPTANCE_RULES[rule or "exact-replay"]
    with Engine(models.target, draft, settings, acceptance=accepting) as engine:
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
    rule: str,
    own: Sequence[Sequence[GenerationResult]],
    results: Sequence[Sequence[GenerationResult]],
) -> None:
    rates, n_other = list[str](), 0
    for its_own, its in zip(own, results, strict=True):
        rounds = sum(result.speculation.rounds for result in its)
        rates.append(f"{sum(len(result.tokens) for result in its) / rounds:.2f}")
        n_other += sum(a.tokens != b.tokens for a, b in zip(its_own, its, strict=True))
    row = f"| {temperature:g} | {rule} | {' | '.join(rates)} |"
    print(row, f"{n_other} of {sum(map(len, results))} |", flush=True)
