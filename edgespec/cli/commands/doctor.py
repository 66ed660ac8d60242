"""`edgespec doctor`: what the machine has, what limits a pair on it, and what would help most."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, get_args

from edgespec.cli.console import Console
from edgespec.cli.flags.tune import N_PROMPTS
from edgespec.cli.flags.values import number
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, engine_settings, read_prompts, settings_from
from edgespec.diagnosis.levers import Outlook, lever_lines, outlook
from edgespec.diagnosis.machine import examine
from edgespec.models.embedded import shipped_prompts
from edgespec.paging import disk_speed
from edgespec.ports.findings import Finding, Topic
from edgespec.session import session
from edgespec.settings.units import format_size
from edgespec.tuning import kept, report
from edgespec.tuning.kept import PairFigures
from edgespec.tuning.trial import TrialFigures, TuningTrial, plan_trial, run_trial

SECONDS, N_TOKENS = 30.0, 48
"""Limits of the run that measures a pair; tokens of each text."""
MARKS = {"fine": " ", "note": "-", "problem": "!"}


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Examine, and write what was found. Raises what planning the models raises."""
    as_json = "json" in args
    console = Console(quiet=as_json)
    _tokens_per_pass(args)
    command = settings_from(args) if "model" in args else None
    settings = command.load if command else None
    paths = tuple(path for path in (settings.model, settings.draft) if path) if settings else ()
    findings = []
    for finding in examine(paths):
        findings.append(finding)
        console.progress("examining", len(findings) / 16)
    console.end_of_progress()
    pair = None if command is None else _examined_pair(args, command, console)
    if as_json:
        console.json(_report(findings, pair))
        return 0
    console.write("\n".join([*_table(findings), *(_pair_lines(pair) if pair else ())]))
    return 0


@dataclass(frozen=True, slots=True)
class PairDiagnosis:
    """Prediction for a pair from storage alone, or with a short run that measured it."""

    outlook: Outlook
    run: TrialFigures | None = None


def _examined_pair(
    args: argparse.Namespace, command: CommandSettings, console: Console
) -> PairDiagnosis | None:
    load, engine = command.load, replace(engine_settings(command.generate), learn=False)
    if "tokens_per_pass" in args:
        speed = disk_speed.bytes_per_second(load.model) if load.model.is_file() else None
        if speed is None:
            return None
        figures = PairFigures.storage_alone(_tokens_per_pass(args))
        return PairDiagnosis(
            outlook(load, partial(session.plan, engine_settings=engine), speed, figures)
        )
    plan = plan_trial(load, engine)
    prompts = tuple(read_prompts(shipped_prompts())[:N_PROMPTS])
    trial = TuningTrial(load, replace(engine, remember=False), prompts, N_TOKENS, SECONDS)
    began = time.monotonic()
    run = run_trial(
        trial,
        tick=lambda: console.progress(
            "measuring the models", min(1.0, (time.monotonic() - began) / SECONDS)
        ),
    )
    console.end_of_progress()
    figures = kept.keep_run(load, plan, run)
    found = outlook(load, partial(plan_trial, engine=engine), kept.disk_of(load, run), figures)
    return PairDiagnosis(found, run)


def _tokens_per_pass(args: argparse.Namespace) -> float:
    return number("--tokens-per-pass", getattr(args, "tokens_per_pass", 1), 1, 10_000)


def _report(findings: Sequence[Finding], pair: PairDiagnosis | None) -> dict[str, Any]:
    """For programs."""
    content: dict[str, Any] = {"findings": [asdict(finding) for finding in findings]}
    if pair:
        found, run = pair.outlook, pair.run
        content["pair"] = {
            "limit": found.limit,
            "disk_bytes_per_s": found.disk_bytes_per_s,
            "bytes_per_pass": found.plan.bytes_per_pass,
            "tokens_per_pass": found.tokens_per_pass,
            "predicted_tokens_per_s": found.tokens_per_s,
            "measured_tokens_per_s": run.tokens_per_s if run else None,
            "measured_peak_bytes": run.peak_bytes if run else None,
            "levers": [asdict(lever) for lever in found.levers],
        }
    return content


def _table(findings: Sequence[Finding]) -> list[str]:
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


def _pair_lines(pair: PairDiagnosis) -> list[str]:
    found = pair.outlook
    lines = ["", *found.plan.notes, f"limit: {found.limit}"]
    if found.tokens_per_s is None:
        return lines
    if pair.run is not None:
        lines += [report.first_line(pair.run), *report.disturbed(pair.run.others)]
        lines.append(f"predicted: {found.tokens_per_s:.2f} tokens/s")
    else:
        assert found.disk_bytes_per_s is not None
        lines.append(
            f"a pass reads {format_size(found.plan.bytes_per_pass)} at "
            f"{found.disk_bytes_per_s / 1e6:,.0f} MB/s: at most {found.tokens_per_s:.2f} tokens/s "
            f"with {found.tokens_per_pass:g} tokens per pass"
        )
    if found.levers:
        bound = "predicted" if pair.run else "at most"
        lines += [f"what would help, {bound}:", *lever_lines(found.levers)]
    return lines
