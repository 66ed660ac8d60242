"""How large the trees of a paged target should be: what more nodes bring, against what the memory
for their logits makes every pass read.

Pure arithmetic on plans. It knows neither trees nor who guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.config import USUAL_DRAFT_MAX
from edgespec.memory.budget import MemoryPlan

TOKENS_PER_PASS = {16: 0.76, USUAL_DRAFT_MAX: 1.0, 64: 1.05, 96: 1.08}
"""By drafted nodes, of what the usual number yields."""
NODES = tuple(1 + drafted for drafted in sorted(TOKENS_PER_PASS, reverse=True))
"""That a plan chooses from, the root among them, larger first."""


def most_tokens(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """Of plans that differ in the most nodes of a pass, the one with the most tokens for a byte
    that is read.

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
