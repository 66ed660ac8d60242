"""Advice about a draft that is not worth its memory, which could pin weights of the target."""

from __future__ import annotations

from edgespec.memory.budget import MemoryPlan
from edgespec.settings.units import format_size
from edgespec.values import SpeculationStats

DRAFT_MODEL = "draft"
"""Owner of a draft's rows in a plan, and name of its source of guesses."""
MIN_ROUNDS, MIN_GAIN = 16, 1.05


def note_on_draft(plan: MemoryPlan, speculation: SpeculationStats) -> str | None:
    """A sentence with figures if decoding without the draft would be faster, otherwise None.

    Speed is estimated as tokens of a pass per byte that it reads. Without the draft its bytes pin
    segments and its accepted guesses are lost; guesses from the text remain.
    """
    draft_bytes = _draft_bytes(plan)
    pass_bytes, rounds = plan.bytes_per_pass, speculation.rounds
    if plan.gain_without_draft or not draft_bytes or not pass_bytes or rounds < MIN_ROUNDS:
        return None
    by_draft = sum(s.accepted for s in speculation.sources if s.source == DRAFT_MODEL)
    tokens = rounds + speculation.accepted
    left_bytes = max(pass_bytes - draft_bytes, 1)
    gain = (tokens - by_draft) / left_bytes * pass_bytes / tokens
    if gain < MIN_GAIN:
        return None
    reading = "a pass would read nothing"
    if left_bytes > 1:
        reading = f"a pass would read {format_size(left_bytes)}"
        reading += f", not {format_size(pass_bytes)}: {gain:.2f} times the speed of storage"
    return (
        f"{by_draft} of {tokens} tokens came from the draft, whose {format_size(draft_bytes)} "
        f"would pin weights instead: {reading}; `draft=None` and `lookup=True` leave it out"
    )


def note_before_loading(name: str, paired: MemoryPlan, alone: MemoryPlan, gain: float) -> str:
    """A sentence about the draft `name`, without which `gain` times the speed is expected."""
    reads = format_size(alone.bytes_per_pass) if alone.bytes_per_pass else "nothing"
    speed = "all weights stay in memory then"
    if gain < MIN_GAIN:
        speed = "no speed is expected to be gained"
    elif alone.bytes_per_pass:
        speed = f"{gain:.1f} times the speed is expected without it"
    return (
        f"{name} takes {format_size(_draft_bytes(paired))}, with which a pass reads "
        f"{format_size(paired.bytes_per_pass)}, and without it {reads}: {speed}"
    )


def _draft_bytes(plan: MemoryPlan) -> int:
    return sum(row.nbytes for row in plan.rows if row.owner == DRAFT_MODEL)
