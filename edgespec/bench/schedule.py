"""In which order runs happen, and how long they will take. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgespec import theory
from edgespec.bench.modes import Mode

RAW = "raw"
START_S = 1.5
"""An interpreter, its imports and a small model: a guess, as all that follows."""
DRAFTED_TOKENS_PER_PASS = 2.0
COMPUTE_BYTES_PER_S = 5e9
"""Weights in memory that a pass gets through in a second."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run to come. `mode` is a mode's name, or RAW."""

    mode: str
    prompt: int
    repetition: int


def scheduled_runs(
    modes: Sequence[str], n_prompts: int, n_repetitions: int
) -> Iterator[ScheduledRun]:
    """Every mode once per repetition and prompt, each time in another order.

    What drifts - a disk's temperature, a neighbour's load - hits all modes alike.
    """
    names = [RAW, *modes]
    for repetition in range(n_repetitions):
        for prompt in range(n_prompts):
            shift = (repetition * n_prompts + prompt) % len(names)
            for name in (*names[shift:], *names[:shift]):
                yield ScheduledRun(name, prompt, repetition)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes and speeds that decide how long a run takes."""

    target_bytes: int
    fits: bool
    """The whole target stays in memory."""
    pass_bytes: int
    """Bytes that a pass of edgespec reads."""
    disk_bytes_per_s: float
    raw_bytes: int


def estimate_s(mode: Mode | None, n_tokens: int, sizes: Sizes) -> float:
    """Seconds of one run; None is the raw read loop. Right within a factor of two or so."""
    if mode is None:
        return START_S + sizes.raw_bytes / sizes.disk_bytes_per_s
    load_s = sizes.target_bytes / sizes.disk_bytes_per_s
    tokens_per_pass = DRAFTED_TOKENS_PER_PASS if mode.drafts else 1.0
    if sizes.fits or mode.resident:
        read_bytes = 0
    elif mode.engine is None:
        read_bytes = sizes.target_bytes  # mapped pages are gone before a pass comes back to them
    else:
        read_bytes = sizes.pass_bytes
    compute_s = sizes.target_bytes / COMPUTE_BYTES_PER_S
    pass_s = theory.pass_seconds(read_bytes, sizes.disk_bytes_per_s, compute_s)
    n_passes = 1 + n_tokens / tokens_per_pass  # the prompt is one
    return START_S + load_s + n_passes * pass_s


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
