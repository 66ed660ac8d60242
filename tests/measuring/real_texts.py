"""Prints how many times as fast as no draft a real pair's texts are on machines of `virtual_clock`.

    python tests/measure.py real-texts [-m TARGET -md DRAFT --prompts FILE] [--machines NAME ...]

The models are real and small, the time is virtual: what the engine decides depends on what a draft
really guesses, and on no noise. A prompt has 160 tokens at most.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean
from typing import Any, cast

import virtual_pair
from edgespec.cli.invocation import read_prompts
from edgespec.models.embedded import models_folder
from real_text import real_texts
from virtual_clock import MACHINES
from virtual_pair import Kept, run

N_TOKENS = 48


def gains(machine: str, texts: list[Any], temperature: float, is_warm: bool) -> list[float]:
    """Tokens a second of each text to those without a draft; `is_warm`, after two others."""
    found = []
    for n, text in enumerate(texts):
        memory = Kept()
        for other in (texts[n - 1], texts[n - 2]) if is_warm else ():
            run(MACHINES[machine], other, N_TOKENS, memory=memory, temperature=temperature)
        drafted, alone = (
            run(
                MACHINES[machine],
                text,
                N_TOKENS,
                drafts=drafts,
                memory=memory if drafts else None,
                temperature=temperature,
            )[0]
            for drafts in (True, False)
        )
        assert drafted.result.tokens == alone.result.tokens
        found.append(drafted.tokens_per_s / alone.tokens_per_s)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folder = models_folder()
    parser.add_argument("-m", default=str(folder / "edgespec-target-q8_0.gguf"))
    parser.add_argument("-md", default=str(folder / "edgespec-draft-q8_0.gguf"))
    parser.add_argument("--prompts", type=Path, default=folder / "held_out_prompts.jsonl")
    parser.add_argument("--machines", nargs="*", default=[*MACHINES], choices=[*MACHINES])


def measure(args: argparse.Namespace) -> None:
    with ExitStack() as owned:
        texts, n_vocab = real_texts(owned, args.m, args.md, read_prompts(args.prompts))
        cast(Any, virtual_pair).N_VOCAB = n_vocab
        for name in args.machines:
            for temperature, is_warm in ((0.0, False), (0.0, True), (1.0, False)):
                rates = gains(name, texts, temperature, is_warm)
                print(
                    f"{name:28}T={temperature:g} {'after others' if is_warm else 'first text':14}"
                    f"{geometric_mean(rates):6.3f}, least {min(rates):.3f}, "
                    f"{sum(rate < 0.97 for rate in rates)} of {len(rates)} below 0.97",
                    flush=True,
                )
