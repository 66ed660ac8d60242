"""`edgespec doctor`: examines the machine."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import get_args

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import model_path
from edgespec.diagnosis.machine import examine
from edgespec.errors import ModelError
from edgespec.registry import Finding, Topic
from edgespec.reports import Report, Row

_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m /media/card/big.gguf      (measures the disk of this file, too)

To measure a disk it writes at most 64 MiB. `edgespec plan` says what a model needs here, and
`edgespec bench` measures it."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Examine this machine: cores, memory, disks and their speed, GPUs, libraries and the\n"
        "cache folder."
    )
    parser.epilog = _EXAMPLES
    groups.flag(parser, "-m --model FILE", "a model whose disk is measured")
    groups.add_output(parser)


MARKS = {"fine": " ", "note": "-", "problem": "!"}


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Examine and report."""
    console = Console(quiet="json" in args)
    model: Path | None = model_path(args.model) if "model" in args else None
    if model is not None and not model.exists():
        raise ModelError(f"{model} does not exist: check the path given with --model")
    findings = []
    for finding in examine(model):
        findings.append(finding)
        console.progress("examining", len(findings) / 16)
    console.result(args, Report(Row("findings", findings, _finding_lines)))
    return 0


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
