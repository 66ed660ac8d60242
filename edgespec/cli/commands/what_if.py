"""`edgespec plan --what-if`: the expected speed of a model and a machine that are not at hand."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from typing import Annotated

from pydantic import BeforeValidator, Field

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.diagnosis import imagined_models
from edgespec.diagnosis.imagined_models import PROMPT_TOKENS, Drafted, WhatIf
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.reports import Column, Report, Row, Table
from edgespec.settings.base import Flag, Settings, spell
from edgespec.settings.config import Threads
from edgespec.settings.parsing import rate
from edgespec.settings.units import format_rate, format_size, parse_size

CTX_SIZE, N_THREADS = 4096, 4
SPELLINGS = {"draft": "-md", "model": "-m"}
_USED = frozenset(("memory", "memory_budget", "ctx_size", "threads", "disk", "json", "what_if"))


class WhatIfSettings(Settings):
    """Settings of an imagined run, beside its model and memory."""

    disk: Annotated[int, Flag(metavar="RATE"), BeforeValidator(rate)] = USUAL_BYTES_PER_S
    """Disk speed of that machine, in bytes per second like 300M. Default: 2 GB/s."""
    ctx_size: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    threads: Threads = N_THREADS


def add_to(parser: ArgumentParser) -> None:
    """Flags of a plan without a file."""
    group = parser.add_argument_group("without a file")
    groups.flag(
        group,
        "--what-if MODEL",
        "a model by its parameters and kind of file, like 8B-Q4_K_M, for a mixture with those of "
        "a token, like 35B-A3B-Q4_K_M; --memory-budget, "
        f"-c ({CTX_SIZE}), -t ({N_THREADS}) and these apply, other flags do not",
    )
    groups.flag(
        group,
        "--memory SIZE",
        "memory of that machine, a part of which its system keeps (default: this machine's)",
    )
    groups.add(group, WhatIfSettings, "disk")


def run(args: argparse.Namespace) -> int:
    """Predict and report."""
    given = set(vars(args)) - _USED - {"command"}
    if given:
        flag = min(SPELLINGS.get(name, spell(name)) for name in given)
        raise UsageError(f"--what-if: {flag} has no meaning without a file; leave it out")
    budget_bytes, source = _budget(args)
    told = groups.given(args, WhatIfSettings)
    found = imagined_models.what_if(
        args.what_if,
        budget_bytes,
        told.disk,
        told.ctx_size or CTX_SIZE,
        told.threads,
    )
    Console().result(args, _report(found, source))
    return 0


def _budget(args: argparse.Namespace) -> tuple[int, str]:
    """Bytes of the budget, and where they come from."""
    if "memory_budget" in args:
        if "memory" in args:
            raise UsageError("--memory and --memory-budget: give one of them")
        return parse_size(args.memory_budget, process.total_bytes()), "as given"
    if "memory" in args:
        memory_bytes, whose = parse_size(args.memory, named="--memory"), "memory"
    else:
        memory_bytes, whose = process.total_bytes(), "this machine's memory"
    left = f"what a system with a browser leaves of {format_size(memory_bytes)} of {whose}"
    return imagined_models.usual_budget(memory_bytes), left


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
