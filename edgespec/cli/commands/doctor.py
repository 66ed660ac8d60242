"""`edgespec doctor`: examines the machine, and predicts what limits a pair on it."""

from __future__ import annotations

import argparse
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import get_args

from edgespec.cli.commands.tune import N_PROMPTS
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import (
    CommandSettings,
    measured_sampling,
    read_prompts,
    settings_from,
)
from edgespec.diagnosis.forecast import Forecast, forecast, speedup_lines
from edgespec.diagnosis.machine import examine
from edgespec.memory import room
from edgespec.ports.findings import Finding, Topic
from edgespec.reports import Report, Row
from edgespec.tuning import pair_figures, report
from edgespec.tuning.trial import TrialFigures, TuningTrial, plan_trial, run_trial

_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m big.gguf -md small.gguf --memory-budget 4GiB

To measure a disk it writes at most 64 MiB. Models are measured for about half a minute, in a
process within the budget; `edgespec plan` loads nothing."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Examine this machine: cores, memory, disks and their speed, GPUs, libraries and the\n"
        "cache folder. With models, or any flag of theirs, also measure what limits their speed\n"
        "and what would help."
    )
    parser.epilog = _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_output(parser)


EXAMINING_BYTES = 5 << 20
"""Memory that examining the machine takes, before runtimes are imported."""
SECONDS, N_TOKENS = 30.0, 48
"""Limits of the measuring run: seconds, and tokens per text."""
MARKS = {"fine": " ", "note": "-", "problem": "!"}


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Examine and report. Raises the errors of planning the models."""
    room.check(EXAMINING_BYTES, "edgespec doctor")
    as_json = "json" in args
    console = Console(quiet=as_json)
    has_models = vars(args).keys() - {"command", "json"}
    command = settings_from(args) if has_models else None
    settings = command.load if command else None
    paths = tuple(path for path in (settings.model, settings.draft) if path) if settings else ()
    findings = []
    for finding in examine(paths):
        findings.append(finding)
        console.progress("examining", len(findings) / 16)
    pair = _examined_pair(command, console) if command else None
    rows = [Row("findings", findings, _finding_lines)]
    if pair:
        rows.append(Row("pair", _pair_report(*pair)))
    console.result(args, Report(*rows))
    return 0


def _examined_pair(command: CommandSettings, console: Console) -> tuple[Forecast, TrialFigures]:
    """The forecast of a pair, and the short run that it is based on."""
    load, engine = command.load, command.engine
    plan = plan_trial(load, engine)
    if not plan.has_draft:  # it came by itself, and was left out
        load = load.without_draft()
    prompts = tuple(read_prompts()[:N_PROMPTS])
    sampling = measured_sampling(load.model, command.generate)
    engine_alone = engine.but(remember=False)
    trial = TuningTrial(load, engine_alone, prompts, N_TOKENS, SECONDS, sampling)
    began = time.monotonic()
    run = run_trial(
        trial,
        tick=lambda: console.progress(
            "measuring the models", min(1.0, (time.monotonic() - began) / SECONDS)
        ),
    )
    figures = pair_figures.save_run(load, plan, run)
    planner = partial(plan_trial, engine=engine)
    return forecast(load, planner, pair_figures.disk_of(load, run), figures), run


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Lines about findings, by topic, and the number of problems."""
    lines = []
    topics = get_args(Topic)
    ordered = sorted(findings, key=lambda finding: topics.index(finding.topic))
    for topic, group in groupby(ordered, key=lambda finding: finding.topic):
        lines.append(topic)
        for finding in group:
            lines.append(f"  {MARKS[finding.level]} {finding.what}: {finding.says}")
            if finding.advice:
                lines.append(f"      {finding.advice}")
    n_problems = sum(finding.level == "problem" for finding in findings)
    return [*lines, "", f"{n_problems} problems" if n_problems else "no problems"]


def _pair_report(found: Forecast, run: TrialFigures) -> Report:
    """Report of a pair: its limit, what was measured and predicted, and what would help."""
    measured = [report.first_line(run), *report.interference_warning(run.others)]
    helps = ["what would help, predicted:", *speedup_lines(found.speedups)]
    is_known = found.tokens_per_s is not None
    return Report(
        Row("limit", found.limit, ["", *found.plan.notes, f"limit: {found.limit}"]),
        Row("disk_bytes_per_s", found.disk_bytes_per_s),
        Row("bytes_per_pass", found.plan.bytes_per_pass),
        Row("tokens_per_pass", found.tokens_per_pass),
        Row("measured_tokens_per_s", run.tokens_per_s, measured if is_known else None),
        Row("measured_peak_bytes", run.peak_bytes),
        Row(
            "predicted_tokens_per_s",
            found.tokens_per_s,
            "predicted: {:.2f} tokens/s".format if is_known else None,
        ),
        Row("levers", found.speedups, helps if is_known and found.speedups else None),
    )
