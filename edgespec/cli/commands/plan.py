"""`edgespec plan`: shows the division of a memory budget and the predicted speed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from edgespec.cli.commands import reports
from edgespec.cli.console import Console
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, settings_from
from edgespec.errors import BudgetError
from edgespec.settings.units import parse_rate


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Plan and report."""
    from edgespec.paging import disk_speed
    from edgespec.session import session

    command = settings_from(args)
    bandwidth: float | None = None
    source = "measured just now"
    if "disk_bandwidth" in args:
        bandwidth, source = parse_rate(args.disk_bandwidth), "as given"
    console = Console()
    with mentioning_draft_max(command):
        memory_plan = session.plan(command.load, command.engine, console.progress)
    console.end_of_progress()
    if bandwidth is None and memory_plan.paged:
        bandwidth = disk_speed.bytes_per_second(command.load.model)
    # imported after planning, because modules take memory
    from edgespec.session import own_draft
    from edgespec.tuning import pair_figures

    load = command.load if memory_plan.has_draft else command.load.without_draft()
    predicted = pair_figures.predicted(load, memory_plan, bandwidth)
    if "json" in args:
        console.json(reports.plan_report(memory_plan, bandwidth, predicted))
        return 0
    for note in command.notes:
        console.note(note)
    made = own_draft.measured(command.load.draft) if command.load.draft else None
    tokens = made.tokens_per_pass if made else None
    table = reports.plan_table(memory_plan, bandwidth, source, predicted, tokens)
    console.write("\n".join(table))
    return 0


@contextmanager
def mentioning_draft_max(command: CommandSettings) -> Iterator[None]:
    """Mention --draft-max in a budget error if it exceeds its default."""
    try:
        yield
    except BudgetError as error:
        n_nodes, usual = (
            command.generate.draft_max,
            type(command.generate).model_fields["draft_max"],
        )
        if command.load.draft is None or n_nodes <= usual.default:
            raise
        message = f"{error}, or --draft-max: buffers hold {n_nodes} nodes, usually {usual.default}"
        raise BudgetError(message, error.smallest_bytes) from error
