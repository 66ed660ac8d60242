"""Compares the preset that `edgespec tune` writes with the best of a sampled grid of settings.

    python tests/measure_tuned_grid.py TARGET DRAFT LINES --share 0.5 --rate 300M [--seconds 280]

A cell is a share of the target's weights that may stay in memory (with the ring, beside what is
needed anyway: that makes the budget) and a disk's speed. For each it tunes once, runs a sample of
the settings that leave the text as it is, and then the fastest of them, the preset and the defaults
in turn; every run is a process of its own within the budget, and all write the same tokens. What is
measured is appended to LINES (JSON), so that it may be cut after `--seconds` and goes on the next
time; when nothing is left to do, the cell's figures are printed. After `taskset -c 0` it measures
on one core.

The fastest of 60 noisy runs was lucky, too: the sample only says which settings run again. Of these
turns every other one chooses the best setting, and the rest say how it compares with the preset;
then the other way round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from edgespec.bench.launching import launch
from edgespec.bench.limits import UNLIMITED, Limiter, Limits, find
from edgespec.bench.other_work import TOO_MUCH
from edgespec.cli.invocation import read_prompts
from edgespec.cli.tune_flags import N_PROMPTS
from edgespec.config import LoadSettings, read_config
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.models.embedded import shipped_prompts
from edgespec.tuning.cost_model import Choice
from edgespec.tuning.laboratory import CHILD
from edgespec.tuning.measurements import Refused, Survey, Surveyed, Write, Written
from edgespec.units import parse_rate

MOST_THREADS = 2
MAXIMA = (4, 8, 16, 24, 32, 48, 64, 96)
N_FINALISTS = 3
N_TURNS = 4
FINAL_TIMES = 2
"""As many tokens as in the sample, of all texts: what suits two texts by chance counts for less."""
PRESET, GRID, FINAL = "preset", "grid", "final"
MARGIN = 4 << 20
LONGEST_RUN_S, LONGEST_SAMPLE_S = 60.0, 8.0
"""Of writing; what is slow in the sample does not come first, however long it runs."""
MOST_TRIES = 3
"""Of a run beside which others computed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--share", type=float, required=True)
    parser.add_argument("--rate", default="unlimited")
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--settings", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=24, help="of each text")
    parser.add_argument("--prompts", type=int, default=4)
    args = parser.parse_args()
    cell = Cell.of(args)
    until = time.monotonic() + args.seconds
    for stage in (tuning, sampling, finals):
        if not stage(cell, until):
            print(f"cut in {stage.__name__}: run it again to go on", flush=True)
            return
    print(json.dumps(summary(cell.known()), indent=1))


@dataclass(frozen=True, slots=True)
class Cell:
    """One share and one disk."""

    load: LoadSettings
    name: str
    rate: str
    limiter: Limiter
    lines: Path
    prompts: tuple[str, ...]
    n_prompts: int
    """Of them, in the sample."""
    n_tokens: int
    usual: Choice
    sample: tuple[Choice, ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Cell:
        limiter = UNLIMITED
        if args.rate != "unlimited":
            limiter, reasons = find(Limits(read_bytes_per_s=parse_rate(args.rate)), args.target)
            assert limiter is not UNLIMITED, reasons
        cores = min(process.usable_cores(), MOST_THREADS)
        usual = Choice(args.draft.resolve(), cores)
        load = LoadSettings(
            model=args.target.resolve(), draft=usual.draft, memory_budget=1 << 40, threads=cores
        )
        return cls(
            load=load.model_copy(update={"memory_budget": budget_of(load, args.share)}),
            name=f"{args.share:.0%} {args.rate}",
            rate=args.rate,
            limiter=limiter,
            lines=args.lines,
            prompts=tuple(read_prompts(shipped_prompts())[:N_PROMPTS]),
            n_prompts=args.prompts,
            n_tokens=args.tokens,
            usual=usual,
            sample=tuple(sampled(usual, args.settings)),
        )

    def known(self) -> list[dict[str, Any]]:
        """What was measured before."""
        if not self.lines.exists():
            return []
        lines = map(json.loads, self.lines.read_text().splitlines())
        return [line for line in lines if line["cell"] == self.name]

    def keep(self, **measured: object) -> None:
        with self.lines.open("a") as file:
            print(json.dumps({"cell": self.name} | measured), file=file)

    def run(self, choice: Choice, is_final: bool = False) -> dict[str, float]:
        """What it reached. One beside which others computed says little: it is repeated."""
        n_tokens = FINAL_TIMES * self.n_tokens if is_final else self.n_tokens
        prompts = self.prompts if is_final else self.prompts[: self.n_prompts]
        longest_s = LONGEST_RUN_S if is_final else LONGEST_SAMPLE_S
        job = Write(choice.load(self.load), choice.engine, prompts, n_tokens, (), longest_s)
        for _ in range(MOST_TRIES):
            began = time.monotonic()
            launched = launch(job, self.limiter, child=CHILD)
            written = launched.answer
            assert isinstance(written, Written), written
            if launched.others <= TOO_MUCH:
                break
        return {
            "tokens_per_s": written.tokens_per_s,
            "tokens_per_pass": written.tokens_per_pass,
            "peak_bytes": written.peak_bytes,
            "others": round(launched.others, 3),
            "took_s": round(time.monotonic() - began, 2),
        }


def budget_of(load: LoadSettings, share: float) -> int:
    """Bytes in which `share` of the weights stay in memory, the ring counted."""
    refused = planned(load.model_copy(update={"memory_budget": 1 << 20}))
    assert isinstance(refused, Refused), refused
    least = planned(load.model_copy(update={"memory_budget": refused.smallest_bytes + MARGIN}))
    assert isinstance(least, MemoryPlan), least
    weights = sum(segment.slot_bytes for segment in least.segments)
    pinned = sum(least.segments[at].slot_bytes for at in least.pinned)
    return int(least.budget_bytes - pinned - least.ring_bytes + share * weights)


def planned(load: LoadSettings) -> MemoryPlan | Refused:
    answer = launch(Survey(((load, Choice(None, 1).engine),)), child=CHILD).answer
    assert isinstance(answer, Surveyed), answer
    (plan,) = answer.plans
    return plan


def sampled(usual: Choice, n_settings: int) -> list[Choice]:
    """The same ones in every cell."""
    threads_tried = range(1, usual.threads + 1)
    grid = itertools.product(threads_tried, threads_tried, MAXIMA, (True, False), (None, False))
    drafted = [
        Choice(usual.draft, threads, own if own != threads else None, n, overlap, lookup)
        for threads, own, n, overlap, lookup in grid
    ]
    alone = [Choice(None, threads) for threads in threads_tried]
    choices = [choice for choice in (*drafted, *alone) if choice != usual]
    return random.Random(14).sample(choices, min(n_settings, len(choices)))


def said(choice: Choice) -> str:
    """`-t 2 -td 1 --draft-max 16 --no-overlap`."""
    if choice.draft is None:
        return f"-t {choice.threads} --no-draft"
    words = [f"-t {choice.threads} -td {choice.threads_draft or choice.threads}"]
    words += [f"--draft-max {choice.draft_max}"] if choice.draft_max else []
    words += [] if choice.overlap else ["--no-overlap"]
    words += [] if choice.lookup is None else ["--no-lookup"]
    return " ".join(words)


def meant(setting: str, usual: Choice) -> Choice:
    """What `said` says."""
    words = setting.split()
    value = dict(itertools.pairwise(words))
    threads = int(value["-t"])
    if "--no-draft" in words:
        return Choice(None, threads)
    own = int(value["-td"])
    return replace(
        usual,
        threads=threads,
        threads_draft=own if own != threads else None,
        draft_max=int(value["--draft-max"]) if "--draft-max" in value else None,
        overlap="--no-overlap" not in words,
        lookup=False if "--no-lookup" in words else None,
    )


def settled(preset: Mapping[str, Any], usual: Choice) -> Choice:
    """What the file of a preset says."""
    if preset.get("no_draft"):
        return Choice(None, preset.get("threads", usual.threads))
    return replace(
        usual,
        threads=preset.get("threads", usual.threads),
        threads_draft=preset.get("threads_draft"),
        draft_max=preset.get("draft_max"),
        overlap=not preset.get("no_overlap", False),
        lookup=preset.get("lookup"),
    )


def tuning(cell: Cell, until: float) -> bool:
    """Once, as a user would. True if it is done."""
    if any(line["stage"] == PRESET for line in cell.known()):
        return True
    out = cell.lines.with_name(f"{cell.name.replace(' ', '-').replace('%', '')}.toml")
    command = [sys.executable, "-m", "edgespec", "tune", "--json", "--out", str(out)]
    command += ["-m", str(cell.load.model), "-md", str(cell.load.draft)]
    command += ["--memory-budget", str(cell.load.memory_budget)]
    command += [] if cell.rate == "unlimited" else ["--disk-bandwidth", cell.rate]
    began = time.monotonic()
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    preset = said(settled(read_config(out), cell.usual))
    trials = [[t["predicted"]["tokens_per_s"], t["tokens_per_s"]] for t in told["trials"]]
    took_s = time.monotonic() - began
    cell.keep(
        stage=PRESET, setting=preset, took_s=took_s, trials=trials, budget=cell.load.memory_budget
    )
    return time.monotonic() < until


def sampling(cell: Cell, until: float) -> bool:
    done = {line["setting"] for line in cell.known() if line["stage"] == GRID}
    for choice in (cell.usual, *cell.sample):
        if said(choice) in done:
            continue
        if time.monotonic() > until:
            return False
        cell.keep(stage=GRID, setting=said(choice), **cell.run(choice))
    return True


def finals(cell: Cell, until: float) -> bool:
    """The fastest of the sample, the preset and the defaults in turn."""
    known = cell.known()
    preset = next(line["setting"] for line in known if line["stage"] == PRESET)
    rates = {line["setting"]: line["tokens_per_s"] for line in known if line["stage"] == GRID}
    fastest = sorted(rates, key=lambda setting: -rates[setting])[:N_FINALISTS]
    names = list(dict.fromkeys([preset, said(cell.usual), *fastest]))
    for turn in range(sum(line["stage"] == FINAL for line in known), N_TURNS):
        if time.monotonic() > until:
            return False
        order = names if turn % 2 == 0 else names[::-1]
        found = {name: cell.run(meant(name, cell.usual), is_final=True) for name in order}
        cell.keep(
            stage=FINAL,
            rates={name: run["tokens_per_s"] for name, run in found.items()},
            others=max(run["others"] for run in found.values()),
        )
    return True


def summary(known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A cell's figures."""
    preset = next(line for line in known if line["stage"] == PRESET)
    grid = [line["tokens_per_s"] for line in known if line["stage"] == GRID]
    turns = [line["rates"] for line in known if line["stage"] == FINAL]
    medians = {name: median(turn[name] for turn in turns) for name in turns[0]}
    ranked = sorted(medians, key=lambda name: -medians[name])
    return {
        "cell": known[0]["cell"],
        "budget_bytes": preset["budget"],
        "preset": preset["setting"],
        "tuned_in_s": round(preset["took_s"]),
        "n_settings": len(grid),
        "grid": {"slowest": min(grid), "median": median(grid), "fastest": max(grid)},
        "finals": {name: [round(turn[name], 2) for turn in turns] for name in ranked},
        "preset_to_best_median": round(medians[preset["setting"]] / medians[ranked[0]], 3),
        "preset_to_best": round(held_out_ratio(turns, preset["setting"]), 3),
        "spread": round(_spread(turn[preset["setting"]] for turn in turns), 3),
    }


def held_out_ratio(turns: Sequence[Mapping[str, float]], preset: str) -> float:
    """The preset's rate over that of the best other setting, in turns that did not choose it."""
    ratios = []
    for choosing, judging in ((turns[::2], turns[1::2]), (turns[1::2], turns[::2])):
        best = max(
            (name for name in turns[0] if name != preset),
            key=lambda name: median(turn[name] for turn in choosing),
        )
        ratios += [turn[preset] / turn[best] for turn in judging]
    return median(ratios)


def _spread(rates: Iterable[float]) -> float:
    """From the slowest to the fastest, as a share of the median."""
    values = sorted(rates)
    return (values[-1] - values[0]) / median(values)


if __name__ == "__main__":
    main()
