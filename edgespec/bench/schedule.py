"""The order in which runs happen, and how long they take as text. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RAW = "raw"


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
