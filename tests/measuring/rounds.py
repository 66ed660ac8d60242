"""Tokens a virtual second of every machine and text of `virtual_pair`.

The defaults are compared with runs without overlap, without a draft, and with the best tree or line
of a fixed size, known in hindsight; with `--rules`, stop rules (exact replay) or acceptance rules
(the round planner, temperature 1) are compared with each other.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import harmonic_mean
from typing import Any

from edgespec.settings.rule_names import AcceptanceName, FallbackName
from virtual_clock import MACHINES, Machine
from virtual_pair import LENGTHS, best_fixed, run
from virtual_text import TEXTS, VirtualText

SEEDS = {32: 8, 64: 8, 96: 2, 128: 4, 512: 3}
"""Texts by length: short ones differ more."""
RULES_TOKENS = 96
RULES = {"fallback": list(FallbackName), "acceptance": list(AcceptanceName)}


def rate(
    machine: Machine, text: VirtualText, n_tokens: int, temperature: float, **rules: Any
) -> float:
    """Tokens a second of texts of several seeds."""
    texts = (replace(text, seed=seed) for seed in range(SEEDS[n_tokens]))
    return harmonic_mean(
        run(machine, one, n_tokens, temperature=temperature, **rules)[0].tokens_per_s
        for one in texts
    )


def row(machine: Machine, text: VirtualText, n_tokens: int, temperature: float) -> str:
    drafted = rate(machine, text, n_tokens, temperature)
    alone = rate(machine, text, n_tokens, temperature, drafts=False)
    beside = drafted / rate(machine, text, n_tokens, temperature, no_overlap=True)
    told = f"{drafted:8.3f}  {drafted / alone:5.3f} of no draft  {beside:5.3f} of no overlap"
    if n_tokens == 128:
        best = harmonic_mean(
            best_fixed(machine, replace(text, seed=seed), n_tokens, temperature)
            for seed in range(SEEDS[n_tokens])
        )
        told += f"  {drafted / best:5.3f} of the best fixed size"
    return told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "machines", nargs="*", metavar="machine", help="; ".join(MACHINES).replace("%", "%%")
    )
    parser.add_argument("--rules", choices=RULES, help="compare rules of this kind")


def measure(args: argparse.Namespace) -> None:
    if args.rules:
        choices = RULES[args.rules]
        print("| machine | text | T |", " | ".join(choices), "|")
        print("| --- " * (3 + len(choices)), "|", sep="")
    for name in args.machines or MACHINES:
        machine = MACHINES[name]
        for kind, text in TEXTS.items():
            for temperature, sure in ((0.0, text.sure), (1.0, 4.0)):
                chosen = replace(text, sure=sure)
                if not args.rules:
                    for n_tokens in LENGTHS:
                        told = row(machine, chosen, n_tokens, temperature)
                        print(
                            f"{name:26}{kind:8} T={temperature:g} {n_tokens:4} {told}", flush=True
                        )
                elif temperature or args.rules == "fallback":
                    rates = [
                        rate(machine, chosen, RULES_TOKENS, temperature, **{args.rules: choice})
                        for choice in choices
                    ]
                    shown = " | ".join(f"{one / rates[0]:.2f}" for one in rates[1:])
                    print(
                        f"| {name} | {kind} | {temperature:g} | {rates[0]:.2f} | {shown} |",
                        flush=True,
                    )
