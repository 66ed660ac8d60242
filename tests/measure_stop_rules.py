"""Prints tokens a virtual second of stop rules or acceptance rules on machines of `virtual_pair`.

    python tests/measure_stop_rules.py [machine ...]
    python tests/measure_stop_rules.py --acceptance [machine ...]

Stop rules: exact replay, texts of all kinds at temperatures 0 and 1. Acceptance rules: the round
planner, temperature 1.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from statistics import harmonic_mean
from typing import Any

from edgespec.settings.config import AcceptanceName, FallbackName
from virtual_clock import MACHINES, Machine
from virtual_pair import run
from virtual_text import TEXTS

SURE = {0.0: 12.0, 1.0: 4.0}
"""Logit of the most probable token, by temperature."""
N_TOKENS = 96


def rate(machine: Machine, kind: str, temperature: float, **rules: Any) -> float:
    """Tokens a second of texts of two seeds."""
    texts = (replace(TEXTS[kind], sure=SURE[temperature], seed=seed) for seed in range(2))
    return harmonic_mean(
        run(machine, text, N_TOKENS, temperature=temperature, **rules)[0].tokens_per_s
        for text in texts
    )


def main(names: list[str]) -> None:
    by_acceptance = "--acceptance" in names
    names = [name for name in names if name != "--acceptance"] or list(MACHINES)
    choices = list(AcceptanceName) if by_acceptance else list(FallbackName)
    field = "acceptance" if by_acceptance else "fallback"
    print("| machine | text | T |", " | ".join(choices), "|")
    print("| --- " * (3 + len(choices)), "|", sep="")
    for name in names:
        for kind in TEXTS:
            for temperature in (1.0,) if by_acceptance else SURE:
                rates = [
                    rate(MACHINES[name], kind, temperature, **{field: choice}) for choice in choices
                ]
                shown = " | ".join(f"{one / rates[0]:.2f}" for one in rates[1:])
                print(
                    f"| {name} | {kind} | {temperature:g} | {rates[0]:.2f} | {shown} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
