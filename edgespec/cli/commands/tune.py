"""`edgespec tune`: finds the fastest settings for this device and pair by a bench of them."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from edgespec.bench import table
from edgespec.bench.bench_runs import Bench, applicable, named_drafts, run_all, survey
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import ENGINE_MODES, with_drafts
from edgespec.bench.summary import summarise
from edgespec.bench.tuned_modes import Variant, fastest, ratios, slower_half, variants
from edgespec.cli.commands.bench import chosen_prompts
from edgespec.cli.console import Console, write_file
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, measured_sampling, with_drafts_of
from edgespec.errors import EdgespecError, UsageError
from edgespec.extras import installed_version
from edgespec.files.named_errors import check_output
from edgespec.reports import Report, Row, Table
from edgespec.settings.base import key_of
from edgespec.settings.config import Speculation

_DESCRIPTION = """\
Find the fastest settings for a pair of models on this device under a memory budget, and write them
to a file for --config.

Only settings that do not change the text are tried: which draft, lookups alone, none, the size of
the token tree, drafting while the target verifies, threads, and the draft on a GPU. Each runs in a
process of its own within the budget, as `edgespec bench` runs modes, on texts sampled as `edgespec
chat` does; after each turn the slower half is dropped. Who wins was faster in every turn."""

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
    groups.flag(output, "--out FILE", "the file to write (default: tuned.toml, if any wins)")
    groups.flag(output, "--quiet", "print no notes or progress")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure, report, and write the file of the fastest settings."""
    console = Console(quiet="quiet" in args)
    told, out = groups.given(args, BenchSettings), Path(getattr(args, "out", "tuned.toml"))
    check_output(out)
    if told.max_tokens < 2:
        raise UsageError("-n 1: the only token comes with the prompt: give 2 or more")
    if told.quick and "repetitions" not in args:
        told = told.model_copy(update={"repetitions": 2})  # one turn decides nothing
    command, paths = with_drafts_of(args, console)
    bench, known = _prepared(command, paths, told, console)
    names = [*known]
    results = run_all(
        bench, console.note, console.progress, (), lambda results: slower_half(results, names)
    )
    if not any(row.mode == names[0] for row in results.rows):
        raise EdgespecError(f"nothing could be measured: {results.failures[0].reason}")
    best = fastest(results, names)
    gain = median(ratios(results, names)[best]) - 1
    verdict = f"Best: {best}, {gain:+.0%} over the defaults." if gain else "The defaults are best."
    is_written = bool(gain) or "out" in args
    settings = _preset(command, known[best])
    found = summarise(results.rows, names, 0.0, bench.sampling.temperature)
    columns = table.columns("defaults", {"mode", "tokens/s", "to defaults", "per pass", "peak"})
    failed = [f"{gone.mode}: {gone.reason}" for gone in results.failures]
    report = Report(
        Row(value=Table(columns, found)),
        Row("trials", [*found], ["", *failed]),
        Row("settings", settings, verdict),
        Row("gain", gain),
        Row("preset", out if is_written else None, f"preset: {out}" if is_written else None),
    )
    console.result(args, report)
    why = f"Found by edgespec {installed_version()} tune for this device and budget. {verdict}"
    if is_written:
        write_file(out, _toml(settings, why))
    return 0


def _prepared(
    command: CommandSettings, paths: Sequence[Path], told: BenchSettings, console: Console
) -> tuple[Bench, dict[str, Variant]]:
    """The bench, and its variants by the names of their modes; notes drafts that are left out."""
    load = command.load
    sampling = measured_sampling(load.model, told.temperature)
    modes = with_drafts(ENGINE_MODES[-1:], named_drafts(paths, load.model))
    bench = Bench(told, load, modes, chosen_prompts(told), sampling=sampling, fits=True)
    usable, left_out = applicable(modes, survey(bench, console.progress), 0)
    for gone in left_out if paths else ():
        console.note(f"{gone.mode}: left out, {gone.reason}")
    drafts = [mode.draft for mode in usable if mode.draft]
    given = load.model_fields_set | command.generate.model_fields_set
    found = variants(load, command.engine, drafts, given)
    modes = [one.mode.at(sampling.temperature) for one in found]
    known = {mode.name: one for mode, one in zip(modes, found, strict=True)}
    return replace(bench, modes=modes), known


def _preset(command: CommandSettings, best: Variant) -> dict[str, Any]:
    """The models, what the user gave of speed and memory, and what was found, by name."""
    draft = best.mode.draft
    load = command.load if draft else command.load.without_draft()
    given = load.but({"draft": draft.path if draft else None}).as_given()
    kept = {"no_draft", *(Speculation.model_fields if draft else ("lookup",))}
    speculation = command.generate.model_dump(mode="json", exclude_unset=True, include=kept)
    settings = {**speculation, **given, **best.settings}
    settings = {k: v.resolve() if isinstance(v, Path) else v for k, v in settings.items()}
    return {k: v for k, v in settings.items() if v is not None and k != "optional_draft"}


def _toml(settings: Mapping[str, Any], why: str) -> str:
    lines = [f"# {why}"]
    for name, value in settings.items():
        shown = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
        lines.append(f"{key_of(name)} = {shown}")
    return "\n".join(lines) + "\n"
