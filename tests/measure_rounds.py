"""Prints tokens a virtual second of every machine and text of `virtual_pair`: the defaults, without
overlap, without a draft, and the best tree or line of a fixed size, known in hindsight.

    python tests/measure_rounds.py [machine ...]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from statistics import harmonic_mean
from typing import Any

from virtual_clock import MACHINES, Machine
from virtual_pair import LENGTHS, best_fixed, run
from virtual_text import TEXTS, Text

SEEDS = {32: 8, 64: 8, 128: 4, 512: 3}
"""Texts by length: short ones differ more."""


def rate(machine: Machine, text: Text, n_tokens: int, temperature: float, **rules: Any) -> float:
    """Tokens a second of texts of several seeds."""
    texts = (replace(text, seed=seed) for seed in range(SEEDS[n_tokens]))
    return harmonic_mean(
        run(machine, one, n_tokens, temperature=temperature, **rules)[0].tokens_per_s
        for one in texts
    )


def row(machine: Machine, text: Text, n_tokens: int, temperature: float) -> str:
    drafted = rate(machine, text, n_tokens, temperature)
    alone = rate(machine, text, n_tokens, temperature, drafts=False)
    beside = drafted / rate(machine, text, n_tokens, temperature, overlap=False)
    told = f"{drafted:8.3f}  {drafted / alone:5.3f} of no draft  {beside:5.3f} of no overlap"
    if n_tokens == 128:
        best = harmonic_mean(
            best_fixed(machine, replace(text, seed=seed), n_tokens, temperature)
            for seed in range(SEEDS[n_tokens])
        )
        told += f"  {drafted / best:5.3f} of the best fixed size"
    return told


def main(names: list[str]) -> None:
    for name in names or MACHINES:
        for kind, text in TEXTS.items():
            for temperature, sure in ((0.0, text.sure), (1.0, 4.0)):
                for n_tokens in LENGTHS:
                    told = row(MACHINES[name], replace(text, sure=sure), n_tokens, temperature)
                    print(f"{name:26}{kind:8} T={temperature:g} {n_tokens:4} {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
