"""Chooses the number of texts at once by the memory plans for several numbers.

Pure arithmetic on plans: it knows no models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from edgespec.memory.budget import MemoryPlan

AUTO_TEXTS = (1, 2, 4, 8)
"""Values of n_parallel that "auto" tries; a pass over more texts takes too long to wait for."""
PLACES_COST = 0.02
"""Largest share of its pinned bytes that places for other texts may cost a text that is alone."""


def auto_texts(
    planned_for: Callable[[int], MemoryPlan | None], keeps_one_text_fast: bool
) -> MemoryPlan | None:
    """The plan with the best `n_parallel`, of those by number of texts; None if there is none.

    `keeps_one_text_fast`: a text that is alone must be about as fast as under the plan for one.
    Models whose prompts would round otherwise beside other texts write one at a time.
    """
    alone = planned_for(1)
    if alone is None or not alone.text_bytes or alone.texts_alter_prompts:
        return alone
    if keeps_one_text_fast:
        tried = map(planned_for, (n for n in AUTO_TEXTS[:0:-1] if has_room_for(n, alone)))
        return next((one for one in tried if one and costs_one_text_little(one, alone)), alone)
    more = takewhile(lambda one: one is not None, map(planned_for, AUTO_TEXTS[1:]))
    return best_n_parallel([alone, *filter(None, more)])


def best_n_parallel(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """The plan with the best `n_parallel` of `plans`, which are sorted by it.

    It is the largest that keeps all weights in memory; otherwise the one with the most texts per
    byte that a pass reads.
    """
    resident = [plan for plan in plans if not plan.paged]
    if resident:
        return resident[-1]
    return max(plans, key=lambda plan: plan.n_parallel / max(1, plan.bytes_per_pass))


def has_room_for(n_texts: int, alone: MemoryPlan) -> bool:
    """True if places for `n_texts` may cost nearly nothing, judged by the plan of one text."""
    unused = alone.budget_bytes - alone.planned_bytes
    spare = PLACES_COST * alone.pinned_bytes if alone.paged else unused
    return (n_texts - 1) * alone.text_bytes <= spare


def costs_one_text_little(plan: MemoryPlan, alone: MemoryPlan) -> bool:
    """True if a text that is alone is about as fast under `plan`, for several, as under `alone`."""
    if plan.has_draft != alone.has_draft:
        return False
    if not alone.paged:
        return not plan.paged
    return plan.pinned_bytes >= (1 - PLACES_COST) * alone.pinned_bytes


def note_on_one_text(plan: MemoryPlan) -> str | None:
    """A note if `auto` leaves it at one text because more would alter prompts."""
    if not plan.texts_alter_prompts or not plan.text_bytes:
        return None
    return (
        "one text at a time: beside others (`n_parallel`) a text may change, and its prompt may "
        "take twice as long"
    )
