"""Prints the tokens of a pass by acceptance rule, temperature and kind of prompt.

The last column says how many texts are not the target's own.

    python tests/measure.py acceptance TARGET DRAFT PROMPTS [PROMPTS ...] [--count 6] [--tokens 64]

Counts, no seconds: every pass verifies as many guesses as it may, all of them the draft's.

    sudo python tests/measure.py acceptance ... --memory 170MiB --rate 300M

prints tokens a second instead: a group limits memory and the disk, and the round planner decides
what is verified, as it does for users. The first row of a temperature has no draft.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from edgespec.cli.commands.bench import BUDGET_SHARE
from edgespec.cli.invocation import read_prompts
from edgespec.engine.settings import EngineSettings
from edgespec.jobs import limits
from edgespec.jobs.launching import drop_cache
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import LoadedModels, open_models
from edgespec.settings.config import LoadSettings
from edgespec.settings.rule_names import AcceptanceName, FallbackName
from edgespec.settings.units import parse_rate, parse_size
from edgespec.values import GenerationResult
from engine_cases import AskedEngine as Engine
from engine_cases import finish

TEMPERATURES = (0.0, 0.6, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=6, help="prompts of each file")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("-c", "--ctx-size", type=int, default=1024)
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument(
        "--rules", nargs="+", choices=list(AcceptanceName), default=list(AcceptanceName)
    )
    parser.add_argument("--guesses", type=int, default=16, help="verified by a pass, at most")
    parser.add_argument("--fallback", choices=list(FallbackName), default=FallbackName.FULL)
    parser.add_argument("--show", action="store_true", help="print lossy texts beside the target's")
    parser.add_argument("--memory", type=parse_size, help="limit of the group: seconds, no counts")
    parser.add_argument(
        "--rate",
        type=partial(parse_rate, named="--rate"),
        help="limit of the disk, in bytes a second",
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)


def measure(args: argparse.Namespace) -> None:
    if args.memory and not args.inside:
        sys.exit(run_inside(args))

    files = {path.stem: read_prompts(path)[: args.count] for path in args.prompts}
    budget = int(BUDGET_SHARE * args.memory) if args.memory else "auto"
    load = LoadSettings(
        model=args.target, draft=args.draft, ctx_size=args.ctx_size, memory_budget=budget
    )
    print("| T | rule | keeps |", " | ".join(files), "| other texts |")
    print("| --- " * (4 + len(files)), "|", sep="")
    with open_models(load, EngineSettings(draft_max=args.guesses)) as models:
        for temperature in args.temperatures:
            own = [texts(models, args, prompts, temperature) for prompts in files.values()]
            if args.memory:
                print_row(args, temperature, "no draft", own, own)
            for rule in args.rules:
                results = [
                    texts(models, args, prompts, temperature, rule) for prompts in files.values()
                ]
                print_row(args, temperature, rule, own, results)
                if args.show:
                    show(own, results)


def run_inside(args: argparse.Namespace) -> int:
    """Run this program again where memory and the disk are limited. Returns its exit status."""
    limiter, reasons = limits.find(limits.ProcessLimits(args.memory, args.rate), args.target)
    if limiter is limits.UNLIMITED:
        sys.exit(f"nothing can be limited here: {reasons}")
    drop_cache(args.target)
    with limiter.bind() as prefix:
        command = [*prefix, sys.executable, *sys.argv, "--inside"]
        return subprocess.run(command, check=False).returncode


def texts(
    models: LoadedModels,
    args: argparse.Namespace,
    prompts: Sequence[str],
    temperature: float,
    rule: AcceptanceName | None = None,
) -> list[GenerationResult]:
    """A text of each prompt by a rule, or of the target alone."""
    settings = EngineSettings(
        acceptance=rule or AcceptanceName.EXACT_REPLAY, draft_max=args.guesses, lookup=False
    )
    if not args.memory:
        settings = settings.but(fallback=args.fallback, no_overlap=True, step_aside=False)
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
    args: argparse.Namespace,
    temperature: float,
    rule: AcceptanceName | Literal["no draft"],
    own: Sequence[Sequence[GenerationResult]],
    results: Sequence[Sequence[GenerationResult]],
) -> None:
    rates = []
    n_other = 0
    for its_own, its in zip(own, results, strict=True):
        seconds = sum(result.timings.decode_s for result in its)
        rounds = sum(result.speculation.rounds for result in its)
        n_tokens = sum(len(result.tokens) for result in its)
        rates.append(f"{n_tokens / (seconds if args.memory else rounds):.2f}")
        n_other += sum(a.tokens != b.tokens for a, b in zip(its_own, its, strict=True))
    n_texts = sum(map(len, results))
    keeps = "" if rule == "no draft" else AcceptanceName(rule).keeps
    row = f"| {temperature:g} | {rule} | {keeps} | {' | '.join(rates)} |"
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
