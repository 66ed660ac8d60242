"""Predicts the speed of memory plans with the round planner, before any round has run.

Pure arithmetic: it loads no models.
"""

from __future__ import annotations

import numpy as np

from edgespec import theory
from edgespec.engine.decision import RoundPlanner
from edgespec.engine.experience import Experience
from edgespec.engine.pass_curve import Knot, PassCurve
from edgespec.memory.budget import MemoryPlan


def planner_of(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None,
    compute_s: float = 0.0,
    rest_s: float = 0.0,
) -> RoundPlanner:
    """A round planner for passes under `plan` that read from a disk of this speed.

    `compute_s` are the seconds of compute in a pass, `rest_s` those of a round outside its pass; 0
    means unknown.
    """
    used_share, read_s, all_experts_s = 1.0, 0.0, 0.0
    if disk_bytes_per_s:
        read_s = plan.streamed_read_bytes / disk_bytes_per_s
    if plan.experts is not None:
        used_share = plan.experts.used_share
    if plan.experts is not None and plan.paged and disk_bytes_per_s:
        all_experts_s = plan.experts.missing_bytes(plan.expert_bytes) / disk_bytes_per_s
    knots = (Knot(1.0, compute_s, 1.0),) if compute_s else ()
    experience = Experience(
        PassCurve(used_share, all_experts_s, read_s=read_s, knots=knots),
        seen_overhead_s=rest_s,
        seen_plain_overhead_s=rest_s,
    )
    return RoundPlanner(experience, max_rows=plan.max_nodes)


def tokens_per_byte(plan: MemoryPlan, n_texts: int = 1) -> float:
    """Tokens per byte read of the best round with `n_texts` texts under `plan`."""
    n_guesses = np.arange(max(1, plan.max_nodes - n_texts + 1), dtype=np.float64)
    tokens = n_texts * theory.tree_tokens(n_guesses / n_texts)
    best = planner_of(plan, disk_bytes_per_s=1.0).prospect(tokens)
    return (1 + best.accepted) / max(1.0, best.seconds)
