"""`edgespec tune`: finds the fastest settings for this device and pair, and writes a preset.

Candidates, trials and the choice are in `edgespec.tuning`.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from edgespec import runtimes
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import (
    measured_sampling,
    model_path,
    own_draft,
    read_prompts,
    settings_from,
)
from edgespec.errors import EdgespecError
from edgespec.extras import installed_version
from edgespec.memory import process
from edgespec.reports import Report, Row
from edgespec.settings.base import Flag, Settings
from edgespec.settings.config import LoadSettings
from edgespec.tuning import pair_figures, presets, report
from edgespec.tuning.candidates import TuningJob
from edgespec.tuning.presets import TUNED
from edgespec.tuning.successive_halving import tune
from edgespec.tuning.trial_runner import ProcessTrialRunner, planned

N_PROMPTS = 6

_DESCRIPTION = """\
Find the fastest settings for a pair of models on this device under a memory budget, and save them
as a preset.

Only settings that do not change the text are tried: which draft, guesses from the text alone, none,
the size of the token tree, drafting while the target verifies, threads of both models, and the
draft on a GPU. Every draft that is given or comes with the target competes, however short the time:
those of -md, the head of a fetched model, and the target's own layer (MTP). Each candidate
continues the same prompts in a process of its own within the budget, sampled as `edgespec chat`
does (--temp). They take turns, and after each turn the slower half is dropped. The defaults are
kept unless a candidate is faster by more than the noise.

Later commands with the same device, models and budget use the preset and print a note; --no-tuned
ignores it. --out writes it to a file for --config instead. Afterwards `edgespec plan` predicts the
tokens per second of this pair."""

_EPILOG = """\
examples:
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec tune -m big.gguf -md small.gguf -md smaller.gguf --memory-budget 4GiB --prompts mine.txt
      find the better of two drafts for texts like those in mine.txt
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB --out big-4gib.toml
  edgespec generate --config big-4gib.toml -p 'Once upon a time'

`edgespec doctor -m` predicts what settings that change the text or what fits would bring (KV types,
another batch size, a smaller context)."""


class TuneSettings(Settings):
    """Settings of tuning, beside those of the models and texts."""

    prompts: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of prompts like yours: one a line, or in .jsonl an object's `prompt`; the first 6 are
    used. Default: beginnings of Python code."""
    seconds: Annotated[float, Flag(metavar="N"), Field(ge=10, le=100_000)] = 90
    """Seconds that measuring may take, roughly."""
    temperature: Annotated[float | None, Flag(metavar="T"), Field(ge=0)] = None
    """Judge by texts of this temperature, with the filters of `edgespec chat`; 0: greedy texts.
    Default: what chat uses: the model's own, otherwise 0.8."""
    out: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Write the preset to FILE."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    groups.add_models(parser, tuning=True)
    groups.add_memory(parser)
    group = parser.add_argument_group("tuning")
    groups.add(group, TuneSettings, "prompts", "seconds", "temperature")
    output = groups.add_output(parser)
    groups.add(output, TuneSettings, "out")
    groups.flag(output, "--quiet", "print no notes or progress")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Tune, report and save the preset."""
    console = Console(quiet="quiet" in args)
    chosen = groups.given(args, TuneSettings)
    job, prompts = job_from(args, console)
    out = chosen.out or presets.path_of(job.load)
    presets.check_writable(out)
    runner = _trial_runner(chosen, prompts, console)
    had_drafts = bool(job.drafts)
    job, plan = planned(job)
    if had_drafts and not job.drafts:
        console.note("no draft can be used beside the target here: it is tuned alone")
    say = (lambda _: None) if "json" in args else console.note
    tuned = tune(runner, job, plan.budget_bytes, say)
    pair_figures.save_run(job.load, plan, tuned.defaults.runs[0])
    best = tuned.winner.candidate
    if chosen.out is None:  # belongs to the pair with the better draft
        out = presets.path_of(best.load(job.load) if best.draft is not None else job.load)
    when = datetime.now().astimezone().isoformat(timespec="minutes")
    reasons = report.preset_reasons(tuned, when, installed_version())
    told = Report(
        Row(value=report.report(tuned)),
        Row("preset", out),
        Row("budget_bytes", plan.budget_bytes),
    )
    console.result(args, told)
    preset = presets.toml(report.preset_settings(tuned), reasons)
    try:
        presets.save(preset, out)
    except EdgespecError:
        console.complain(f"The preset, which took minutes, for --config FILE:\n\n{preset}")
        raise
    console.note(f"preset: {out}")
    return 0


def job_from(args: argparse.Namespace, console: Console) -> tuple[TuningJob, tuple[str, ...]]:
    """The job and its prompts. Raises UsageError and ModelError."""
    drafts = list(dict.fromkeys(getattr(args, "draft", [])))
    if drafts:
        args.draft = drafts[0]
    args.no_tuned = True  # an earlier preset must not count
    prompts = read_prompts(groups.given(args, TuneSettings).prompts)
    command = settings_from(args)
    for note in command.notes:
        console.note(note)
    given = command.load.as_given()
    is_optional = given.pop("optional_draft", False)  # tuning measures whether it pays
    load = LoadSettings.model_validate(given)
    others = [model_path(draft, "--model-draft") for draft in drafts[1:]]
    if load.draft is not None and (own := own_draft(load.model)):
        others.append(own)
    known = tuple(dict.fromkeys([*([load.draft] if load.draft else ()), *others]))
    for path in (load.model, *known):
        runtimes.find(path)
    job = TuningJob(
        load=load,
        engine=command.engine,
        drafts=known,
        default_threads=process.usable_cores(),
        fixed=frozenset((load.model_fields_set | command.generate.model_fields_set) & TUNED),
        sampling=measured_sampling(load.model, command.generate),
        has_optional_drafts=is_optional,
    )
    return job, tuple(prompts[:N_PROMPTS])


def _trial_runner(
    told: TuneSettings, prompts: tuple[str, ...], console: Console
) -> ProcessTrialRunner:
    show = partial(console.progress_with_rest, "tuning")
    return ProcessTrialRunner(prompts, told.seconds, show)
