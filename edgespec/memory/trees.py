"""The size of a paged target's trees: the yield of more nodes against the memory for their logits,
which makes every pass read more.

Pure arithmetic on plans. It knows neither trees nor who guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.memory.budget import MemoryPlan
from edgespec.settings.config import USUAL_DRAFT_MAX

TOKENS_PER_PASS = {16: 0.76, USUAL_DRAFT_MAX: 1.0, 64: 1.05, 96: 1.08}
"""Tokens per pass by drafted nodes, relative to the usual number."""
NODES = tuple(1 + drafted for drafted in sorted(TOKENS_PER_PASS, reverse=True))
"""Sizes of trees that a plan chooses from, the root included, larger first."""


def most_tokens(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """The plan with the most tokens per byte read, of plans that differ in the most nodes of a
    pass.

    A resident target reads nothing: its trees are small, and the usual buffers hold them.
    """
    resident = sorted((plan for plan in plans if not plan.paged), key=_nodes)
    if resident:
        usual = [plan for plan in resident if plan.max_nodes <= 1 + USUAL_DRAFT_MAX]
        return (usual or resident[:1])[-1]
    return max(plans, key=_tokens_per_byte)


def _nodes(plan: MemoryPlan) -> int:
    return plan.max_nodes


def _tokens_per_byte(plan: MemoryPlan) -> float:
    return TOKENS_PER_PASS.get(plan.max_nodes - 1, 1.0) / max(1, plan.bytes_per_pass)
