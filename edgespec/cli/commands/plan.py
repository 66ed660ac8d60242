"""`edgespec plan`: shows the division of a memory budget and the predicted speed."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser

from edgespec.cli.commands import what_if
from edgespec.cli.commands.plan_report import plan_report
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import settings_from
from edgespec.settings.config import GenerateSettings

_EXAMPLES = """\
examples:
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec plan -m big.gguf --memory-budget 2G -c 8192 --read-limit 300M --json
  edgespec plan --what-if 8B-Q4_K_M --memory-budget 2.5GiB --read-limit 2G
      predict a model that is not at hand, on a machine that is not

A budget that is too small ends with exit code 4 and the smallest budget that works."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = "Show how a memory budget would be divided, and the predicted speed."
    parser.epilog = _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_parallel(parser)
    guesses = parser.add_argument_group("draft")
    groups.add(guesses, GenerateSettings, "draft_max")
    what_if.add_to(parser)
    groups.add_output(parser)


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Plan and report."""
    if "what_if" in args:
        return what_if.run(args)
    command = settings_from(args)
    from edgespec.paging import disk_speed
    from edgespec.session import session

    limit, console = command.load.read_limit, Console()
    memory_plan = session.plan(command.load, command.engine, console.progress)
    bandwidth = None
    if memory_plan.paged:
        bandwidth = disk_speed.bytes_per_second(command.load.model, limit=limit)
    source = "the limit" if bandwidth == limit else "measured just now"
    # imported after planning, because modules take memory
    from edgespec.session import own_draft

    for note in command.notes:
        console.note(note)
    made = own_draft.measured(command.load.draft) if command.load.draft else None
    tokens = made.tokens_per_pass if made else None
    console.result(args, plan_report(memory_plan, bandwidth, source, tokens))
    return 0
