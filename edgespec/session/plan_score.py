"""Predicts the speed of memory plans from prices, before any round has run.

Pure arithmetic: it loads no models.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec import theory
from edgespec.engine.kept_ledger import draft_share, latest_costs, share_name, streamed_tenths
from edgespec.engine.ledger import Ledger
from edgespec.engine.prices import Floats, Prices
from edgespec.engine.state_store import Learnt
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
its rows, relative to one row. Measured with the head of smollm2 on conversation and
code."""


class ExpectedRound(NamedTuple):
    """A round before any tree exists."""

    n_rows: int
    """Rows to verify: the root and the guesses."""
    tokens: float
    seconds: float


def prices_of(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None,
    compute_s: float = 0.0,
    further_row_s: float | None = None,
) -> Prices:
    """Prices of passes under `plan` that read from a disk of this speed.

    `compute_s` are the seconds of compute in a pass over one row, `further_row_s` those of a
    further row, None if unknown. 0 means unknown.
    """
    prices = Prices()
    if disk_bytes_per_s:
        prices.read_s = plan.streamed_read_bytes / disk_bytes_per_s
    if plan.experts is not None:
        prices.used_share = plan.experts.used_share
        if plan.paged and disk_bytes_per_s:
            missing_bytes = plan.experts.missing_bytes(plan.expert_bytes)
            prices.all_experts_s = missing_bytes / disk_bytes_per_s
    if compute_s:
        prices.put(1, compute_s)
    if further_row_s is not None and plan.max_nodes > 1:
        n_further = plan.max_nodes - 1
        prices.put(1 + n_further, compute_s + n_further * further_row_s)
    return prices


def best_round(
    prices: Prices, max_rows: int, tokens: Floats | None = None, rest_s: float = 0.0
) -> ExpectedRound:
    """The round with the most tokens per second.

    `tokens` are those of rounds with 0, 1, 2, ... guesses, by default the typical ones
    (`theory.tree_tokens`); `rest_s` is what a round takes outside its pass.
    """
    if tokens is None:
        tokens = theory.tree_tokens(np.arange(max_rows, dtype=np.float64))
    seconds = prices.pass_s(1 + np.arange(len(tokens))) + rest_s
    best = int((tokens / np.maximum(seconds, 1e-9)).argmax())
    return ExpectedRound(1 + best, float(tokens[best]), float(seconds[best]))


def expected_rate(plan: MemoryPlan, n_texts: int = 1, n_threads: int = 2) -> float:
    """Expected tokens per second of the best round with `n_texts` texts under `plan`, on a usual
    disk with `n_threads` usual cores."""
    n_guesses = np.arange(max(1, plan.max_nodes - n_texts + 1), dtype=np.float64)
    tokens = n_texts * theory.tree_tokens(n_guesses / n_texts)
    used_bytes = sum(segment.nbytes for segment in plan.segments)
    if plan.experts is not None:
        used_bytes += int(plan.experts.used_share * plan.experts.room_bytes)
    row_s = used_bytes / (COMPUTE_BYTES_PER_S * n_threads / 2)
    prices = prices_of(plan, USUAL_DISK_BYTES_PER_S, row_s, FURTHER_ROW_COST * row_s)
    seconds = prices.pass_s(1 + np.arange(len(tokens)))
    return float((tokens / np.maximum(seconds, 1e-9)).max())


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
    ledger = Ledger()
    ledger.load_state_dict(known)
    compute_s = ledger.prices.compute_s(1) or target.size_bytes / COMPUTE_BYTES_PER_S
    alone_s = compute_s if alone.paged else compute_s / PAGED_COST
    plain_s = 1 / _rate(alone, disk_bytes_per_s, 1.0, alone_s, 0.0)
    if same:
        ledger = Ledger(prices_of(paired, disk_bytes_per_s))
        ledger.load_state_dict(same)
        return ledger.prices.plain_s() / (plain_s * max(1.0, ledger.speedup))
    tokens = ledger.tokens / ledger.rounds if ledger.rounds else USUAL_TOKENS
    steps_s = USUAL_STEPS * share * compute_s
    rate = _rate(paired, disk_bytes_per_s, tokens, USUAL_ROWS_COST * compute_s, steps_s)
    return 1 / (plain_s * rate)


def _rate(
    plan: MemoryPlan, disk_bytes_per_s: float | None, tokens: float, compute_s: float, rest_s: float
) -> float:
    """Tokens per second of rounds that compute for `compute_s` and draft for `rest_s`."""
    prices = prices_of(plan, disk_bytes_per_s, compute_s)
    return tokens / max(best_round(prices, 1, np.array([tokens]), rest_s).seconds, 1e-9)
