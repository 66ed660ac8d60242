"""The number of texts at once that `auto` stands for. Pure arithmetic on plans."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.memory.budget import MemoryPlan

AUTO_TEXTS = (1, 2, 4, 8)
"""Numbers that are tried: a pass over more texts is long to wait for, whatever it brings."""


def best_number(plans: Sequence[MemoryPlan]) -> int:
    """The number of texts at once of the best of `plans`, which are in the order of that number.

    The largest that keeps all weights in memory; where none does, the one with the most texts for
    the bytes that a pass reads.
    """
    resident = [plan for plan in plans if not plan.paged]
    if resident:
        return resident[-1].n_parallel
    return max(plans, key=lambda plan: plan.n_parallel / max(1, plan.bytes_per_pass)).n_parallel
