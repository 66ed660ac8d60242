"""Which settings are predicted to be best where a budget gives a pair so much memory.

Arithmetic on plans and speeds that are known; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import Choice, Prediction, Speeds, predict
from edgespec.tuning.measurements import Refused
from edgespec.tuning.measuring import Wanted
from edgespec.tuning.search import candidates

LEAST_GAIN = 0.05
"""Over the defaults, by which other settings are chosen: each has one run, and turns of the same
settings differ by 2 to 10 %."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """What is predicted of a budget."""

    choice: Choice
    """The best, or the defaults if nothing beats them by more than noise."""
    best: Prediction
    usual: Prediction
    drafted: float
    """Tokens a second of the best with the draft."""
    alone: float | None
    """Of the target without one; None where the budget is too small or nothing is known of it."""


def alone_of(usual: Choice) -> Choice:
    return replace(usual, draft=None, threads_draft=None)


def ranked(
    wanted: Wanted,
    plan: MemoryPlan,
    without: MemoryPlan | Refused,
    by_kind: Mapping[bool, Speeds],
) -> Ranked | None:
    """None where it is not known how weights compute that are paged, or not, as in `plan`. All that
    guess are taken to have its memory, all that do not that of `without`."""
    usual, speeds = wanted.usual, by_kind.get(plan.paged)
    if speeds is None:
        return None
    found = {usual: predict(usual, plan, speeds)}
    for choice in candidates(wanted, speeds):
        if choice.guesses:
            found.setdefault(choice, predict(choice, plan, speeds))
    drafted = max(one.tokens_per_s for choice, one in found.items() if choice.draft == usual.draft)
    alone = None
    if isinstance(without, MemoryPlan) and without.paged in by_kind:
        # alone there is no learning that could fall short of the best round
        speeds = replace(by_kind[without.paged], reached=1.0)
        for threads in speeds.compute:
            choice = replace(alone_of(usual), threads=threads)
            found.setdefault(choice, predict(choice, without, speeds))
        alone = found[alone_of(usual)].tokens_per_s
    best = max(found, key=lambda choice: found[choice].tokens_per_s)
    if found[best].tokens_per_s <= (1 + LEAST_GAIN) * found[usual].tokens_per_s:
        best = usual
    return Ranked(best, found[best], found[usual], drafted, alone)
