"""`edgespec tune`: finds the fastest settings for this device and pair by a bench of them."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from edgespec import runtimes
from edgespec.bench import table
from edgespec.bench.bench_runs import Bench, applicable, named_drafts, run_all, survey
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import ENGINE_MODES, with_drafts
from edgespec.bench.summary import summarise
from edgespec.bench.tuned_modes import fastest, ratios, slower_half, variants
from edgespec.cli.commands.bench import chosen_prompts
from edgespec.cli.console import Console, write_file
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import check_output
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, measured_sampling, with_drafts_of
from edgespec.errors import EdgespecError
from edgespec.extras import installed_version
from edgespec.reports import Report, Row, Table
from edgespec.settings.base import spell

_DESCRIPTION = """\
Find the fastest settings for a pair of models on this device under a memory budget, and write them
to a file for --config.

Only settings that do not change the text are tried: which draft, guesses from the text alone, none,
the size of the token tree, drafting while the target verifies, threads of both models, and the
draft on a GPU. Each runs in a process of its own within the budget, as `edgespec bench` runs modes,
on texts sampled as `edgespec chat` does (--temp). They take turns, and after each turn the slower
half is dropped. A setting must be faster in every turn to replace the defaults."""

_EPILOG = """\
examples:
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB --out big-4gib.toml
  edgespec generate --config big-4gib.toml -p 'Once upon a time'"""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    groups.add_models(parser, several_drafts=True)
    groups.add_memory(parser)
    runs = parser.add_argument_group("runs")
    names = ("prompts", "repetitions", "max_tokens", "temperature", "quick")
    groups.add(runs, BenchSettings, *names, defaults={"temperature": "what chat uses"})
    output = groups.add_output(parser)
    groups.flag(output, "--out FILE", "the file to write (default: tuned.toml)")
    groups.flag(output, "--quiet", "print no notes or progress")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure, report, and write the file of the fastest settings."""
    console = Console(quiet="quiet" in args)
    told, out = groups.given(args, BenchSettings), Path(getattr(args, "out", "tuned.toml"))
    check_output(out)
    command, paths = with_drafts_of(args, console)
    load, engine = command.load, command.engine
    drafts = named_drafts(paths, load.model, runtimes.find(load.model))
    prompts, n_prompts = chosen_prompts(told)
    sampling = measured_sampling(load.model, told.temperature)
    any_mode = with_drafts(ENGINE_MODES[-1:], drafts)
    bench = Bench(told, load, any_mode, prompts, n_prompts, sampling=sampling, fits=True)
    usable, left_out = applicable(any_mode, survey(bench, console.progress), 0)
    drafts = [mode.draft for mode in usable if mode.draft]
    for gone in left_out if paths else ():
        console.note(f"{gone.mode}: left out, {gone.reason}")
    given = load.model_fields_set | command.generate.model_fields_set
    known = {
        one.mode.at(sampling.temperature).name: one for one in variants(load, engine, drafts, given)
    }
    names = [*known]
    bench = replace(bench, modes=[one.mode.at(sampling.temperature) for one in known.values()])
    results = run_all(
        bench, console.note, console.progress, (), lambda results: slower_half(results, names)
    )
    if not any(row.mode == names[0] for row in results.rows):
        raise EdgespecError(f"nothing could be measured: {results.failures[0].reason}")
    best, gains = fastest(results, names), ratios(results, names)
    gain = median(gains[best]) - 1
    verdict = f"Best: {best}, {gain:+.0%} over the defaults." if gain else "The defaults are best."
    settings = {**_given(command), **known[best].settings}
    found = summarise(results.rows, names, 0.0, sampling.temperature)
    columns = table.columns("defaults", {"mode", "tokens/s", "to defaults", "per pass", "peak"})
    report = Report(
        Row(value=Table(columns, found)),
        Row(
            "trials", [*found], ["", *(f"{gone.mode}: {gone.reason}" for gone in results.failures)]
        ),
        Row("settings", settings, verdict),
        Row("gain", gain),
        Row("preset", out, "preset: {}".format),
    )
    console.result(args, report)
    when = datetime.now().astimezone().isoformat(timespec="minutes")
    why = f"Found by edgespec {installed_version()} tune, {when}, for this device and budget."
    write_file(out, _toml(settings, f"{why} {verdict}"))
    return 0


def _given(command: CommandSettings) -> dict[str, Any]:
    """The models and the settings that the user gave, by name."""
    load = {k: v for k, v in command.load.as_given().items() if k != "optional_draft"}
    text = command.generate.model_dump(mode="json", exclude_unset=True, exclude=_OF_TEXTS)
    paths = {k: v.resolve() for k, v in load.items() if isinstance(v, Path)}
    return {k: v for k, v in (text | load | paths).items() if v is not None}


_OF_TEXTS = {"seed", "max_tokens", "temperature"}
"""Settings of the texts that are measured."""


def _toml(settings: Mapping[str, Any], why: str) -> str:
    lines = [f"# {why}"]
    for name, value in settings.items():
        shown = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
        lines.append(f"{spell(name).removeprefix('--')} = {shown}")
    return "\n".join(lines) + "\n"
