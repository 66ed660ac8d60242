"""The report of a memory plan, and of the speed that it promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.reports import Report, Row, aligned
from edgespec.settings.config import USUAL_DRAFT_MAX
from edgespec.settings.units import format_rate, format_size

if TYPE_CHECKING:
    from edgespec.engine.prices import Point

LOOKUP_TOKENS, DRAFT_TOKENS = (1.1, 3.0), (1.5, 8.0)
"""Tokens per pass of real models: from the text alone, and with a draft or head."""
NOTED_SHARE = 0.95
"""Largest share of a pass's bytes that passes of short texts read for the report to say so."""


def plan_report(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None = None,
    disk_source: str = "",
    measured: float | None = None,
) -> Report:
    """Report of a memory plan and the predicted cost of a pass.

    `measured` are tokens per pass of a draft made from the target.
    """
    return Report(
        Row("", plan, _plan_lines),
        Row("disk_bytes_per_s", disk_bytes_per_s),
        Row("seconds_per_pass", _pass_s(plan, disk_bytes_per_s) if disk_bytes_per_s else None),
        Row(format=_pass_lines(plan, disk_bytes_per_s, disk_source, measured)),
        Row(format=plan.notes),
    )


def _plan_lines(plan: MemoryPlan) -> list[str]:
    """Lines about the division of memory, and what texts take of it."""
    totals = {
        "planned": plan.planned_bytes,
        "budget": plan.budget_bytes,
        "smallest budget that works": plan.smallest_bytes,
    }
    lines = [*_size_lines(plan.rows, totals), ""]
    if plan.gpu_budget_bytes:
        totals = {
            "planned on the GPU": plan.gpu_planned_bytes,
            "budget there": plan.gpu_budget_bytes,
        }
        lines += [*_size_lines(plan.gpu_rows, totals), ""]
    if not plan.enforced:
        lines.append("The budget is not enforced on this platform.")
    lines.append(f"A prompt is read in batches of {plan.batch_size:,} tokens or less.")
    if plan.n_parallel > 1:
        lines.append(f"Up to {plan.n_parallel} texts are generated at once.")
    if plan.text_bytes:
        size = format_size(plan.text_bytes)
        lines.append(f"A place for one more text at once (-np) takes about {size}.")
    return lines


def _size_lines(rows: Sequence[MemoryRow], totals: Mapping[str, int]) -> list[str]:
    """A table of sizes; rows that take nothing are left out."""
    sizes = [(f"{row.owner:<8} {row.what}", row.nbytes) for row in rows if row.nbytes]
    table = [(what, f"{format_size(nbytes):>10}") for what, nbytes in (*sizes, *totals.items())]
    return aligned(table, [True, False])


def _expert_lines(plan: MemoryPlan, experts: ExpertSizes) -> list[str]:
    n_rows = _best_round(plan, disk_bytes_per_s=1.0).n_rows
    more = f", over {n_rows} {format_size(plan.expected_bytes(n_rows))}" if n_rows > 1 else ""
    return [
        f"{experts.n_layers} layers choose {experts.n_used} of {experts.n_experts} experts for a "
        f"token: {format_size(experts.token_bytes)} of {format_size(experts.nbytes)}.",
        f"{plan.expert_bytes / experts.room_bytes:.0%} of the experts fit into memory at once: a "
        f"pass over one token probably reads {format_size(plan.bytes_per_pass)}{more}.",
    ]


def _best_round(plan: MemoryPlan, disk_bytes_per_s: float) -> Point:
    """The best round without measurements; imported here because it needs NumPy."""
    from edgespec.session.strategy import best_tree

    return best_tree(plan, disk_bytes_per_s)


def _pass_lines(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None,
    disk_source: str,
    measured: float | None,
) -> list[str]:
    if not plan.paged:
        return ["The target fits into memory: its weights stay there, and no pass reads the disk."]
    segments = f"{len(plan.pinned)} of {len(plan.segments)} segments are pinned"
    pinned = format_size(plan.pinned_bytes)
    if len(plan.pinned) < len(plan.segments):
        ring = format_size(plan.ring_bytes)
        lines = [f"{segments} ({pinned}); the others stream through a ring of {ring}."]
    else:
        lines = [f"All {len(plan.segments)} segments are pinned ({pinned})."]
    if plan.upper_bytes:
        upper, lower = format_size(plan.upper_bytes), format_size(plan.streamed_read_bytes)
        lines.append(
            f"Their upper bits stay, as the draft ({upper}); the lower ones are read ({lower})."
        )
    if plan.experts is None:
        lines.append(f"A pass reads {format_size(plan.bytes_per_pass)}{_of_short_texts(plan)}.")
    else:
        lines += _expert_lines(plan, plan.experts)
    if disk_bytes_per_s:
        disk = f"At {format_rate(disk_bytes_per_s)} ({disk_source})"
        reading = f"{disk} reading takes {_pass_s(plan, disk_bytes_per_s):.2f} s"
        lines.append(f"{reading}: {_bound(plan, disk_bytes_per_s, measured)}")
    return lines


def _of_short_texts(plan: MemoryPlan) -> str:
    """The end of a line: bytes that passes of short texts read, if they are much fewer."""
    least = plan.least_bytes_per_pass
    if least > NOTED_SHARE * plan.bytes_per_pass:
        return ""
    return (
        f", of short texts {format_size(least)}: weights have the KV cache's memory until it is "
        "filled"
    )


def _pass_s(plan: MemoryPlan, disk_bytes_per_s: float) -> float:
    """Seconds of reading for a pass over one token of a short text."""
    return plan.least_bytes_per_pass / disk_bytes_per_s


def _bound(plan: MemoryPlan, disk_bytes_per_s: float, measured: float | None) -> str:
    """Line with the upper bound set by storage, if compute and guesses were not measured here.

    `measured` are the draft's tokens per pass if it was made from the target.
    """
    has_draft = plan.has_draft
    if plan.max_nodes == 1:  # without guesses, show what they would gain
        plan = replace(plan, max_nodes=1 + USUAL_DRAFT_MAX)
    best = _best_round(plan, disk_bytes_per_s)
    low, high = DRAFT_TOKENS if has_draft else LOOKUP_TOKENS
    guessed = ", and guesses hardly pay"
    if best.n_rows > 1 and measured:
        guessed = (
            f", {best.seconds / measured:.2f} s with {measured:.1f} tokens a pass, as measured "
            "when this draft was made"
        )
    elif best.n_rows > 1:
        guesser = "this draft if it yields" if has_draft else "guesses from the text if they yield"
        guessed = (
            f", {best.seconds / high:.2f} to {best.seconds / low:.2f} s with {guesser} "
            f"{low:g} to {high:g} tokens a pass, as with real models"
        )
    return (
        f"{_pass_s(plan, disk_bytes_per_s):.2f} s per token alone{guessed}.\n"
        "Computing may take longer: `edgespec bench` with these models measures it."
    )
