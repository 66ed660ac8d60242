"""Compares the tokens a second that `edgespec plan` predicts with those of a run.

    python tests/measure_predictions.py TARGET DRAFT|none CELL... [--threads 2] [--tokens 40]

A cell is a budget and a disk, `200MiB:300M` or `75MiB:unlimited`. Predictions rest on what `tune`
or `doctor` left behind for these models, so one of them comes first; where they left nothing that
speaks of a cell, nothing is predicted. Each cell is planned first and run then, in processes of
their own; texts are the shipped prompts that `tune` uses. A line of JSON for each cell.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from edgespec.bench.launching import launch
from edgespec.bench.limits import UNLIMITED, Limits, find
from edgespec.cli.invocation import read_prompts
from edgespec.cli.tune_flags import N_PROMPTS
from edgespec.config import LoadSettings
from edgespec.models.embedded import shipped_prompts
from edgespec.tuning.cost_model import Choice
from edgespec.tuning.laboratory import CHILD
from edgespec.tuning.measurements import Write, Written
from edgespec.units import parse_rate

LONGEST_RUN_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft")
    parser.add_argument("cells", nargs="+", metavar="CELL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=40, help="of each text")
    args = parser.parse_args()
    draft = None if args.draft == "none" else Path(args.draft)
    for cell in args.cells:
        budget, _, rate = cell.partition(":")
        told = planned(args.target, draft, budget, rate, args.threads)
        run = ran(args.target, draft, budget, rate, args.threads, args.tokens)
        print(json.dumps({"cell": cell, **compared(told, run)}), flush=True)


def planned(
    target: Path, draft: Path | None, budget: str, rate: str, threads: int
) -> dict[str, Any]:
    """What `edgespec plan` says."""
    command = [sys.executable, "-m", "edgespec", "plan", "--json", "-t", str(threads)]
    command += ["-m", str(target), "--memory-budget", budget]
    command += ["-md", str(draft)] if draft else ["--no-draft"]
    command += [] if rate == "unlimited" else ["--disk-bandwidth", rate]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    told: dict[str, Any] = json.loads(shown)
    return told


def ran(
    target: Path, draft: Path | None, budget: str, rate: str, threads: int, n_tokens: int
) -> tuple[Written, float]:
    """A run with the defaults, and the share of the cores that others took beside it."""
    limiter = UNLIMITED
    if rate != "unlimited":
        limiter, reasons = find(Limits(read_bytes_per_s=parse_rate(rate)), target)
        assert limiter is not UNLIMITED, reasons
    load = LoadSettings(model=target, draft=draft, memory_budget=budget, threads=threads)
    prompts = tuple(read_prompts(shipped_prompts())[:N_PROMPTS])
    job = Write(load, Choice(draft, threads).engine, prompts, n_tokens, (), LONGEST_RUN_S)
    launched = launch(job, limiter, child=CHILD)
    assert isinstance(launched.answer, Written), launched.answer
    return launched.answer, launched.others


def compared(told: dict[str, Any], run: tuple[Written, float]) -> dict[str, Any]:
    """The cell's figures."""
    written, others = run
    predicted = told["predicted"] and told["predicted"]["tokens_per_s"]
    return {
        "predicted": predicted and round(predicted, 2),
        "run": round(written.tokens_per_s, 2),
        "ratio": predicted and round(predicted / written.tokens_per_s, 3),
        "predicted_tokens_per_pass": predicted and round(told["predicted"]["tokens_per_pass"], 2),
        "tokens_per_pass": round(written.tokens_per_pass, 2),
        "peak_bytes": written.peak_bytes,
        "others": round(others, 3),
    }


if __name__ == "__main__":
    main()
