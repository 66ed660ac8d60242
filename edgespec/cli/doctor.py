"""`edgespec doctor`: what the machine has, what limits a pair on it, and what would help most."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any, get_args

from edgespec import session
from edgespec.cli.console import Console
from edgespec.cli.invocation import settings_from
from edgespec.config import LoadSettings
from edgespec.diagnosis.levers import Outlook, outlook
from edgespec.diagnosis.machine import examine
from edgespec.errors import UsageError
from edgespec.paging import disk_speed
from edgespec.ports.findings import Finding, Topic
from edgespec.units import format_size

MARKS = {"fine": " ", "note": "-", "problem": "!"}


def run(given: argparse.Namespace) -> None:
    """Examine, and write what was found. Raises what planning the models raises."""
    as_json = "json" in given
    console = Console(quiet=as_json)
    tokens_per_pass = _tokens_per_pass(given)
    settings = settings_from(given).load if "model" in given else None
    paths = tuple(path for path in (settings.model, settings.draft) if path) if settings else ()
    findings = []
    for finding in examine(paths):
        findings.append(finding)
        console.progress("examining", len(findings) / 16)
    console.end_of_progress()
    pair = None if settings is None else _outlook(settings, tokens_per_pass, console)
    if as_json:
        console.json(_report(findings, pair))
        return
    console.write("\n".join([*_table(findings), *(_outlook_lines(pair) if pair else ())]))


def _outlook(settings: LoadSettings, tokens_per_pass: float, console: Console) -> Outlook | None:
    speed = disk_speed.bytes_per_second(settings.model) if settings.model.is_file() else None
    if speed is None:
        return None
    found = outlook(settings, partial(session.plan), speed, tokens_per_pass)
    console.end_of_progress()
    return found


def _tokens_per_pass(given: argparse.Namespace) -> float:
    text = getattr(given, "tokens_per_pass", "1")
    try:
        tokens = float(text)
    except ValueError as error:
        raise UsageError(f"--tokens-per-pass {text}: write a number such as 3.5") from error
    if not 1 <= tokens < 1e4:
        raise UsageError(f"--tokens-per-pass {text}: a pass yields at least one token")
    return tokens


def _report(findings: Sequence[Finding], pair: Outlook | None) -> dict[str, Any]:
    """For programs."""
    report: dict[str, Any] = {"findings": [asdict(finding) for finding in findings]}
    if pair:
        report["pair"] = {
            "limit": pair.limit,
            "disk_bytes_per_s": pair.disk_bytes_per_s,
            "bytes_per_pass": pair.plan.bytes_per_pass,
            "tokens_per_pass": pair.tokens_per_pass,
            "predicted_tokens_per_s": pair.tokens_per_s,
            "levers": [asdict(lever) for lever in pair.levers],
        }
    return report


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


def _outlook_lines(pair: Outlook) -> list[str]:
    lines = ["", f"limit: {pair.limit}"]
    if pair.tokens_per_s is None:
        return lines
    lines.append(
        f"a pass reads {format_size(pair.plan.bytes_per_pass)} at "
        f"{pair.disk_bytes_per_s / 1e6:,.0f} MB/s: at most {pair.tokens_per_s:.2f} tokens/s with "
        f"{pair.tokens_per_pass:g} tokens per pass"
    )
    lines.append("what would help, at most:")
    for lever in pair.levers:
        rate = lever.tokens_per_s
        reached = "all of it fits: computing decides" if rate is None else f"{rate:.2f} tokens/s"
        lines.append(f"  {lever.change}: {reached}")
    return lines
