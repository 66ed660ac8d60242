"""`edgespec plan --what-if`: the expected speed of a model and a machine that are not at hand."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.diagnosis import imagined_models
from edgespec.diagnosis.imagined_models import PROMPT_TOKENS, Drafted, WhatIf
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.reports import Column, Report, Row, Table
from edgespec.settings.base import spell
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_rate, format_size

CTX_SIZE, N_THREADS = 4096, 4
_USED = {"memory_budget", "ctx_size", "threads", "read_limit", "json", "what_if", "command"}


def add_to(parser: ArgumentParser) -> None:
    """The flag of a plan without a file."""
    groups.flag(
        parser.add_argument_group("without a file"),
        "--what-if MODEL",
        "a model by its parameters and kind of file, like 8B-Q4_K_M, for a mixture with those of "
        "a token, like 35B-A3B-Q4_K_M, or by name, like gpt-oss-20b; --memory-budget (what a "
        "system with a browser leaves of "
        f"this machine), --read-limit (a disk's speed, {format_rate(USUAL_BYTES_PER_S)}), -c "
        f"({CTX_SIZE}) and -t ({N_THREADS}) apply, other flags do not",
    )


def run(args: argparse.Namespace) -> int:
    """Predict and report."""
    if given := vars(args).keys() - _USED:
        flag = min(spell(name) for name in given)
        raise UsageError(f"--what-if: {flag} has no meaning without a file; leave it out")
    told = groups.given(args, LoadSettings, model="none")
    budget = told.memory_budget
    source = "as given"
    if budget == "auto":
        budget = imagined_models.usual_budget(process.total_bytes())
        source = "what a system with a browser leaves of this machine's memory"
    found = imagined_models.what_if(
        args.what_if,
        process.resolve_budget(budget),
        told.read_limit or USUAL_BYTES_PER_S,
        told.ctx_size or CTX_SIZE,
        told.threads or N_THREADS,
    )
    Console().result(args, _report(found, source))
    return 0


def _report(found: WhatIf, source: str) -> Report:
    plan, disk = found.plan, found.disk_bytes_per_s
    reading = "It fits into memory: no pass reads the disk, and computing decides."
    if plan.paged:
        reading = (
            f"{format_size(plan.pinned_bytes + plan.expert_bytes)} of weights stay in memory; a "
            f"pass reads "
            f"{format_size(plan.bytes_per_pass)}: {plan.bytes_per_pass / disk:.2f} s at "
            f"{format_rate(disk)}."
        )
    prompt = (
        f"A prompt of {PROMPT_TOKENS} tokens takes about {found.first_token_s:.0f} s with "
        f"{found.n_threads} threads."
    )
    legend: tuple[str, str] | str | None = None
    if found.drafted:
        legend = ("", "Of two figures the first is for conversation, the second for code.")
    elif plan.paged:
        legend = "No draft that fits would be faster; guesses from the text itself need none."
    alone = Drafted("no draft", 0, (1, 1), (found.seconds_per_token, found.seconds_per_token))
    return Report(
        Row(
            value=found,
            format=f"{found.model.upper()}: {format_size(found.size_bytes)}, like {found.like}; "
            "derived from sizes, not measured.",
        ),
        Row(format=f"Budget: {format_size(plan.budget_bytes)}, {source}."),
        Row(format=f"Smallest budget that works: {format_size(plan.smallest_bytes)}."),
        Row(format=(reading, prompt, "")),
        Row(value=Table(_COLUMNS, (alone, *found.drafted))),
        Row(format=legend),
    )


def _both(figures: tuple[float, float], form: str) -> str:
    conversation, code = (f"{figure:{form}}" for figure in figures)
    return conversation if conversation == code else f"{conversation} / {code}"


def _rates(one: Drafted) -> str:
    slow, fast = one.seconds_per_token
    return _both((1 / slow, 1 / fast), ".2f")


_COLUMNS: list[Column[Drafted]] = [
    Column("draft", "draft", is_left=True),
    Column("", "memory", lambda one: format_size(one.draft_bytes) if one.draft_bytes else ""),
    Column("", "tokens a pass", lambda one: _both(one.tokens_per_pass, ".1f")),
    Column("", "seconds a token", lambda one: _both(one.seconds_per_token, ".2f")),
    Column("", "tokens/s", _rates),
]
