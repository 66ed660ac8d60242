"""Predicts the speed of memory plans with the round planner, before any round has run.

Pure arithmetic: it loads no models.
"""

from __future__ import annotations

import numpy as np

from edgespec import theory
from edgespec.engine.drafting.state_store import Learnt, Numbers, recall
from edgespec.engine.planning.credit import Credit
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.engine.planning.stored_planner import (
    draft_share,
    latest_costs,
    share_name,
    streamed_tenths,
)
from edgespec.memory.budget import MemoryPlan
from edgespec.values import ModelInfo, PagingStats

COMPUTE_BYTES_PER_S = 10e9
"""Paged weights that a pass over one row computes per second, before a run has measured it: a small
model on two cores."""
PAGED_COST = 1.5
"""Time to compute with paged weights, relative to resident ones, which are packed and computed
without stops."""
USUAL_DISK_BYTES_PER_S = 0.5e9
"""Disk that the size of trees is chosen for."""
FURTHER_ROW_COST = 0.5
"""Time to compute a further row of a pass, relative to the first: 0.5 to 0.7 measured, Q8_0 and
Q4_K with AVX2."""
USUAL_TOKENS, USUAL_STEPS, USUAL_ROWS_COST = 2.5, 3, 2.2
"""A round with a draft that has not run yet: its tokens, its draft steps, and the time to compute
its rows, relative to one row. Measured with the head of smollm2 (decision 0084) on conversation and
code."""


def planner_of(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None,
    compute_s: float = 0.0,
    rest_s: float = 0.0,
    further_row_s: float | None = None,
) -> RoundPlanner:
    """A round planner for passes under `plan` that read from a disk of this speed.

    `compute_s` are the seconds of compute in a pass over one row, `further_row_s` those of a
    further row, None if unknown; `rest_s` are those of a round outside its pass. 0 means unknown.
    """
    used_share, read_s, all_experts_s = 1.0, 0.0, 0.0
    if disk_bytes_per_s:
        read_s = plan.streamed_read_bytes / disk_bytes_per_s
    if plan.experts is not None:
        used_share = plan.experts.used_share
    if plan.experts is not None and plan.paged and disk_bytes_per_s:
        all_experts_s = plan.experts.missing_bytes(plan.expert_bytes) / disk_bytes_per_s
    curve = PassCurve(ExpertStalls(used_share, all_experts_s), read_s)
    if compute_s:
        curve.put(1.0, compute_s, 1.0)
    if further_row_s is not None and plan.max_nodes > 1:
        n_further = plan.max_nodes - 1
        curve.put(1.0 + n_further, compute_s + n_further * further_row_s, 1.0)
    costs = RoundCosts(curve, seen_overhead_s=rest_s, seen_plain_overhead_s=rest_s)
    return RoundPlanner(costs, max_rows=plan.max_nodes)


def expected_rate(plan: MemoryPlan, n_texts: int = 1, n_threads: int = 2) -> float:
    """Expected tokens per second of the best round with `n_texts` texts under `plan`, on a usual
    disk with `n_threads` usual cores."""
    n_guesses = np.arange(max(1, plan.max_nodes - n_texts + 1), dtype=np.float64)
    tokens = n_texts * theory.tree_tokens(n_guesses / n_texts)
    used_bytes = sum(segment.nbytes for segment in plan.segments)
    if plan.experts is not None:
        used_bytes += int(plan.experts.used_share * plan.experts.room_bytes)
    row_s = used_bytes / (COMPUTE_BYTES_PER_S * n_threads / 2)
    planner = planner_of(
        plan, USUAL_DISK_BYTES_PER_S, row_s, further_row_s=FURTHER_ROW_COST * row_s
    )
    best = planner.plan_score(tokens)
    return (1 + best.accepted) / max(1e-9, best.seconds)


def gain_without_draft(
    paired: MemoryPlan,
    alone: MemoryPlan,
    target: ModelInfo,
    draft_bytes: int,
    disk_bytes_per_s: float | None,
    learnt: Learnt,
) -> float:
    """Expected speed of the target alone under `alone`, relative to the pair under `paired`.

    `learnt` is what earlier runs of the pair have stored; typical figures stand in for the rest.
    """
    share = draft_share(target, draft_bytes)
    paging = PagingStats(pinned_bytes=paired.pinned_bytes, streamed_bytes=paired.streamed_bytes)
    same = latest_costs(learnt, share_name(streamed_tenths(paging)))
    known = same or latest_costs(learnt) or {}
    compute_s = _compute_s(known) or target.size_bytes / COMPUTE_BYTES_PER_S
    alone_s = compute_s if alone.paged else compute_s / PAGED_COST
    plain_s = 1 / _rate(alone, disk_bytes_per_s, 1.0, alone_s, 0.0)
    if same:
        planner = planner_of(paired, disk_bytes_per_s)
        planner.restore(same)
        return 1 / (plain_s * planner.rate)
    tokens = _tokens_per_round(known) or USUAL_TOKENS
    steps_s = USUAL_STEPS * share * compute_s
    rate = _rate(paired, disk_bytes_per_s, tokens, USUAL_ROWS_COST * compute_s, steps_s)
    return 1 / (plain_s * rate)


def _rate(
    plan: MemoryPlan, disk_bytes_per_s: float | None, tokens: float, compute_s: float, rest_s: float
) -> float:
    """Tokens per second of rounds that compute for `compute_s` and draft for `rest_s`."""
    planner = planner_of(plan, disk_bytes_per_s, compute_s, rest_s)
    return tokens / max(planner.plan_score(np.array([tokens])).seconds, 1e-9)


def _compute_s(costs: Numbers) -> float:
    """Seconds to compute a pass over one row; 0 if unknown."""
    curve = PassCurve()
    curve.restore(costs)
    return float(curve.compute_s(1))


def _tokens_per_round(costs: Numbers) -> float:
    """Expected tokens of the rounds with guesses; 0 if there were none."""
    credit = Credit()
    recall(costs, credit)
    return credit.tokens / credit.rounds if credit.rounds else 0.0
