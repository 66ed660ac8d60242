"""`edgespec doctor`: what the machine has, what limits a pair on it, and what would help most."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from math import isfinite
from typing import Any, get_args

from edgespec import session
from edgespec.cli.console import Console
from edgespec.cli.invocation import Request, engine_settings, read_prompts, settings_from
from edgespec.cli.tune_flags import N_PROMPTS
from edgespec.config import LoadSettings
from edgespec.diagnosis.levers import Lever, Outlook, outlook
from edgespec.diagnosis.machine import examine
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.models.embedded import shipped_prompts
from edgespec.paging import disk_speed
from edgespec.ports.findings import Finding, Topic
from edgespec.tuning import kept_speeds, measured_report, report
from edgespec.tuning.laboratory import Laboratory
from edgespec.tuning.measuring import Measured, Wanted, measure, the_plan
from edgespec.units import format_size

SECONDS = 60
"""That measuring a pair may take, more or less."""
MARKS = {"fine": " ", "note": "-", "problem": "!"}


def run(given: argparse.Namespace) -> None:
    """Examine, and write what was found. Raises what planning the models raises."""
    as_json = "json" in given
    console = Console(quiet=as_json)
    _tokens_per_pass(given)
    request = settings_from(given) if "model" in given else None
    settings = request.load if request else None
    paths = tuple(path for path in (settings.model, settings.draft) if path) if settings else ()
    findings = []
    for finding in examine(paths):
        findings.append(finding)
        console.progress("examining", len(findings) / 16)
    console.end_of_progress()
    pair = None if request is None else _examined_pair(given, request, console)
    if as_json:
        console.json(_report(findings, pair))
        return
    console.write("\n".join([*_table(findings), *(_pair_lines(pair) if pair else ())]))


@dataclass(frozen=True, slots=True)
class Pair:
    """What is known of a pair: by storage alone, or measured in short runs."""

    outlook: Outlook
    measured: Measured | None = None


def _examined_pair(given: argparse.Namespace, request: Request, console: Console) -> Pair | None:
    settings = request.load
    if "tokens_per_pass" in given:
        return _by_storage(settings, _tokens_per_pass(given), console)
    wanted = Wanted(
        load=settings,
        engine=engine_settings(request.generate),
        drafts=(settings.draft,) if settings.draft else (),
        usual_threads=process.usable_cores(),
    )
    prompts = tuple(read_prompts(shipped_prompts())[:N_PROMPTS])
    progress = partial(console.progress, "measuring the models")
    laboratory = Laboratory(settings.model, prompts, SECONDS, progress=progress)
    measured = measure(laboratory, wanted, other_settings=False)
    found = measured_outlook(laboratory, measured)
    console.end_of_progress()
    kept_speeds.keep(measured)
    return Pair(found, measured)


def measured_outlook(laboratory: Laboratory, measured: Measured) -> Outlook:
    """What would help, by what was measured; each change is planned in a process of its own."""
    engine = measured.wanted.usual.engine
    expected = measured.expected
    disk_bytes_per_s = measured.speeds.disk_bytes_per_s
    return outlook(
        measured.wanted.load,
        lambda load: the_plan(laboratory, load, engine),
        disk_bytes_per_s if isfinite(disk_bytes_per_s) else None,
        expected.tokens_per_pass,
        measured.rate,
        report.limit_of(expected),
    )


def _by_storage(settings: LoadSettings, tokens_per_pass: float, console: Console) -> Pair | None:
    speed = disk_speed.bytes_per_second(settings.model) if settings.model.is_file() else None
    if speed is None:
        return None
    found = outlook(settings, partial(session.plan), speed, tokens_per_pass)
    console.end_of_progress()
    return Pair(found)


def _tokens_per_pass(given: argparse.Namespace) -> float:
    text = getattr(given, "tokens_per_pass", "1")
    try:
        tokens = float(text)
    except ValueError as error:
        raise UsageError(f"--tokens-per-pass {text}: write a number such as 3.5") from error
    if not 1 <= tokens < 1e4:
        raise UsageError(f"--tokens-per-pass {text}: a pass yields at least one token")
    return tokens


def _report(findings: Sequence[Finding], pair: Pair | None) -> dict[str, Any]:
    """For programs."""
    told: dict[str, Any] = {"findings": [asdict(finding) for finding in findings]}
    if pair:
        found, measured = pair.outlook, pair.measured
        told["pair"] = {
            "limit": found.limit,
            "disk_bytes_per_s": found.disk_bytes_per_s,
            "bytes_per_pass": found.plan.bytes_per_pass,
            "tokens_per_pass": found.tokens_per_pass,
            "predicted_tokens_per_s": found.tokens_per_s,
            "measured_tokens_per_s": measured.first.tokens_per_s if measured else None,
            "measured_peak_bytes": measured.first.peak_bytes if measured else None,
            "expected_round": asdict(measured.expected) if measured else None,
            "gpus": measured_report.gpus(measured) if measured else [],
            "levers": [asdict(lever) for lever in found.levers],
        }
    return told


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


def _pair_lines(pair: Pair) -> list[str]:
    found = pair.outlook
    lines = ["", f"limit: {found.limit}"]
    if found.tokens_per_s is None:
        return lines
    if pair.measured is not None:
        lines += [*measured_report.lines(pair.measured), _expected_line(pair.measured)]
    else:
        assert found.disk_bytes_per_s is not None
        lines.append(
            f"a pass reads {format_size(found.plan.bytes_per_pass)} at "
            f"{found.disk_bytes_per_s / 1e6:,.0f} MB/s: at most {found.tokens_per_s:.2f} tokens/s "
            f"with {found.tokens_per_pass:g} tokens per pass"
        )
    if found.levers:
        bound = "predicted" if pair.measured else "at most"
        lines += [f"what would help, {bound}:", *lever_lines(found.levers)]
    return lines


def _expected_line(measured: Measured) -> str:
    expected, first = measured.expected, measured.first
    return (
        f"predicted: {expected.tokens_per_s:.2f} tokens/s, {expected.tokens_per_pass:.2f} tokens "
        f"per pass of {expected.n_nodes} guesses; the short run that this was learnt from had "
        f"{first.tokens_per_s:.2f} tokens/s"
    )


def lever_lines(levers: Sequence[Lever]) -> list[str]:
    """What would help."""
    return [f"  {lever.change}: {_reached(lever)}" for lever in levers]


def _reached(lever: Lever) -> str:
    if lever.tokens_per_s is None:
        return "all of it fits: computing decides"
    return f"{lever.tokens_per_s:.2f} tokens/s"
