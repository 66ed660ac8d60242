"""`edgespec bench`: chooses models, modes and limits, runs them in turn, and reports.

Measuring, arithmetic and drawing are in `edgespec.bench`.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from argparse import ArgumentParser
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from edgespec import registry
from edgespec.bench import table
from edgespec.bench.bench_report import AppliedLimits, BenchReport, ModelFile, this_machine
from edgespec.bench.bench_runs import Bench, Prompt, applicable, named_drafts, run_all, survey
from edgespec.bench.bench_settings import N_PROMPTS, BenchSettings
from edgespec.bench.modes import choose, known_modes, with_drafts
from edgespec.bench.summary import spread, summaries
from edgespec.cli.commands import demo
from edgespec.cli.console import STDOUT, Console, report_failure, write_json
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import measured_sampling, read_prompts, with_drafts_of
from edgespec.errors import EdgespecError, marked
from edgespec.extras import installed_version
from edgespec.files.named_errors import check_output
from edgespec.jobs import limits
from edgespec.jobs.limits import ProcessLimits
from edgespec.memory import process
from edgespec.memory.budget import MIB
from edgespec.memory.process import resolve_budget
from edgespec.models.model_files import size_of
from edgespec.session import session
from edgespec.settings.base import in_flags
from edgespec.settings.config import LoadSettings

_DESCRIPTION = """\
Measure ways of decoding on the same models, prompts and limits, and report tokens per second,
memory and reads. Each run is a process of its own, begins with a cold page cache, and the modes
take turns."""

_EPILOG = """\
modes:
  mmap            the model's own library, llama.cpp or onnxruntime, weights mapped from the file
  resident        the same, weights in memory and packed as it likes them best, where they fit
  llama-linear-3  llama.cpp's linear speculation, both models mapped; not for ONNX
  paged           edgespec without a draft
  linear          one branch of a fixed length
  tree-adaptive   LLMCad's tree and threshold
  lookup          no draft model: guesses from the text itself and from the target's own words
  auto            edgespec with its defaults: what a user gets; auto-draft without lookup
and always raw: a plain loop of direct reads.

Each mode runs greedily, and once more as `edgespec chat` samples (--temp), as `auto @0.8`. That
doubles the time; --temp 0 leaves it out, as --quick does. Sampled texts of edgespec's modes are
equal, too; a library draws with random numbers of its own.

Of several drafts (-md A -md B) each runs in every mode that drafts, as a row of its own. Name the
target itself for its own layer (MTP). A draft that cannot guess for the target is left out, with
the reason.

Each run's process may take --memory-budget, otherwise half of the target's size or the least that
works; auto is no limit. Without -m the embedded target is enlarged to 1 GiB, once.

examples:
  edgespec bench --quick
      a first look at this machine, in a minute or two
  sudo edgespec bench --read-limit 300M
      the embedded pair, as on a slow device
  sudo edgespec bench -m big.gguf -md small.gguf -md head.gguf --modes paged,lookup,auto-draft,auto
      which draft, alone and with lookups: tokens per pass, tokens/s, to no draft, memory

Limits need the right to make control groups (Linux: root). Where that is not given, the bench says
so and nothing but edgespec's own budget is limited."""


SIZE = 1 << 30
"""Size of the enlarged target."""
BUDGET_SHARE = 1 / 1.02
"""Budget of edgespec as a share of the memory limit: a control group also counts memory that
belongs to no process."""
PROMPT_WIDTH = 14
"""Length of a prompt's name in tables."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    groups.add_models(parser, several_drafts=True)
    groups.add_memory(parser)
    groups.add(parser.add_argument_group("runs"), BenchSettings)
    output = parser.add_argument_group("output")
    groups.flag(
        output,
        "--json FILE",
        "everything that was measured; without FILE on stdout, the table then on stderr",
        nargs="?",
        const="-",
    )
    groups.flag(output, "--share", "one line of JSON that may be posted; the table on stderr")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure and report. Raises EdgespecError for failed runs after writing the report."""
    settings, console = groups.given(args, BenchSettings), Console()
    json_name: str | None = getattr(args, "json", None)
    if json_name is not None and json_name != STDOUT:
        check_output(Path(json_name))
    report = measure(args, settings, console)
    lines = "\n".join(table.summary(report).lines(console.width))
    if json_name == STDOUT or "share" in args:
        console.note(lines)
    else:
        console.write("\n" + lines)
    if "share" in args:
        write_json(STDOUT, report.shared())
    if json_name is not None:
        write_json(json_name, report.as_dict())
    if report.failures:
        error = EdgespecError(
            f"{len(report.failures)} runs failed: {marked(report.failures[0].reason)}"
        )
        if json_name not in (None, STDOUT):  # the file has the report, failures included
            return report_failure(error, error.message, error.exit_code, None)
        raise error
    return 0


def measure(args: argparse.Namespace, settings: BenchSettings, console: Console) -> BenchReport:
    """Run the whole bench and return its report."""
    is_named = bool({"model", "hf_repo", "config"} & vars(args).keys())
    opened, drafts = with_drafts_of(args, console)
    load, library = opened.load, registry.find(opened.load.model).baselines
    requested = choose(settings.modes, known_modes(library.BASELINES if library else ()))
    if not is_named:
        load = load.but({"model": demo.enlarged(SIZE, console)})
    began, load, target = datetime.now().astimezone(), _limited(load), load.model
    memory_bytes = None if load.memory_budget == "auto" else resolve_budget(load.memory_budget)
    process_limits = ProcessLimits(memory_bytes, load.read_limit)
    limiter, reasons = limits.find(process_limits, target)
    if process_limits and limiter is limits.UNLIMITED:
        why = f"limits cannot be set here ({'; '.join(reasons)})"
        console.note(f"{why}: nothing is limited but edgespec's own reads")
    given: dict[str, Any] = {"read_limit": load.read_limit if limiter is limits.UNLIMITED else None}
    if memory_bytes is not None:
        given["memory_budget"] = budget = int(BUDGET_SHARE * memory_bytes)
    prompts = chosen_prompts(settings)
    modes = with_drafts(requested, named_drafts(drafts, target))
    bench = Bench(
        settings,
        load.but(given),
        modes,
        prompts,
        limiter,
        measured_sampling(target, settings.temperature),
    )
    surveyed = survey(bench, console.progress)
    room_bytes = process.available_bytes() if memory_bytes is None else memory_bytes
    modes, left_out = applicable(modes, surveyed, room_bytes)
    temperature = bench.sampling.temperature
    modes = [mode.at(t) for t in dict.fromkeys((0.0, temperature)) for mode in modes]
    bench = replace(bench, modes=modes, fits=surveyed.resident_bytes <= room_bytes)
    results = run_all(bench, console.note, console.progress)
    if not results.raw:
        raise EdgespecError(f"nothing could be measured: {results.failures[0].reason}")
    raw = spread(results.raw)
    versions = {"edgespec": installed_version(), "Python": platform.python_version()}
    versions |= dict([library.LIBRARY.rsplit(" ", 1)] if library else ())
    return BenchReport(
        command=shlex.join(["edgespec", *sys.argv[1:]]),
        began=began.isoformat(timespec="seconds"),
        versions=versions,
        machine=this_machine(load.threads or process.usable_cores()),
        target=_model_file(target),
        drafts=[_model_file(path) for path in bench.drafts],
        limits=AppliedLimits(
            limiter.name, memory_bytes, load.read_limit, budget if memory_bytes else None
        ),
        n_tokens=settings.max_tokens,
        n_baseline_tokens=settings.tokens_of(is_slow=not bench.fits),
        n_repetitions=settings.repetitions,
        prompts=[prompt.name for prompt in prompts],
        raw_bytes_per_s=raw,
        descriptions={mode.name: mode.description for mode in modes},
        modes=summaries(results.rows, modes, raw.median),
        left_out=left_out,
        failures=results.failures,
        notes=sorted({in_flags(note) for row in results.rows for note in row.decoded.notes}),
        rows=results.rows,
        sampling=bench.sampling.model_dump(exclude={"logit_bias"}) if temperature else None,
    )


def _limited(load: LoadSettings) -> LoadSettings:
    """The settings with a bench's defaults: a context for its texts, and half of the target's size,
    or the smallest budget that works."""
    usual = {"ctx_size": 512, "memory_budget": size_of(load.model) // 2}
    limited = load.but({k: v for k, v in usual.items() if k not in load.model_fields_set})
    try:
        budget = int(BUDGET_SHARE * usual["memory_budget"])
        session.plan(limited.but({"memory_budget": budget, "optional_draft": False}))
    except EdgespecError as error:  # which the survey tells of
        needed = getattr(error, "smallest_bytes", None)
        if needed and "memory_budget" not in load.model_fields_set:
            return limited.but({"memory_budget": int(needed / BUDGET_SHARE) + MIB})
    return limited


def chosen_prompts(settings: BenchSettings) -> list[Prompt]:
    """The prompts, named by their number and the beginning of their text: all of a file, or the
    first of those that come with edgespec."""
    texts = read_prompts(settings.prompts)
    n_texts = len(texts) if settings.prompts else 1 if settings.quick else N_PROMPTS
    return [
        Prompt(f"{number} {(text.strip() or 'blank').splitlines()[0][:PROMPT_WIDTH]}", text)
        for number, text in enumerate(texts[:n_texts], 1)
    ]


def _model_file(path: Path) -> ModelFile:
    return ModelFile(path.name, size_of(path))
