"""Chooses what writes most tokens a second, predicted from sizes before anything is loaded.

Pure arithmetic: a `Speed` says what a machine does, a `Strategy` how long a round takes on it.
Once texts are written, `engine.prices` has what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from edgespec import theory
from edgespec.engine.prices import Point, Prices
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.settings.config import DRAFT_CTX_SIZE, USUAL_DRAFT_MAX
from edgespec.values import NESTED, DraftSizes

USUAL_THREADS, MOST_THREADS = 2, 8
"""Threads of the machine that was measured; beyond MOST_THREADS memory limits them."""
TOKEN_BYTES_PER_S, DRAFT_BYTES_PER_S, MERGED_BYTES_PER_S = 10e9, 6e9, 1e9
"""Weights that USUAL_THREADS multiply per second, in a pass over one token and in a draft step, and
that one thread puts together of nested parts: 0.9 on a Zen 4, more on others."""
PAGED_COST = 1.5
"""Time to compute with paged weights, relative to resident ones, which are packed and computed
without stops."""
FURTHER_ROW_COST = 0.5
"""Time to compute a further row of a pass, relative to the first: 0.5 to 0.7 measured, Q8_0 and
Q4_K with AVX2."""
LARGER_TREE_COST = 0.02
"""Largest share of the rate that a plan loses for larger trees, which few texts need."""
MIN_S = 1e-9
"""Least seconds of a round that are predicted."""
MIN_SPEEDUP = 1.1
"""Least expected speedup for which a draft is made: it takes disk space and minutes."""


class Guessing(NamedTuple):
    """Rounds with a kind of draft."""

    tokens: tuple[float, float]
    """Tokens per pass in conversation, and on code."""
    n_steps: int
    """Draft steps that are not hidden behind reads."""
    rows_cost: float
    """Time to compute the rows of its passes, relative to one row."""


ALONE = Guessing((1.0, 1.0), 0, 1.0)
LOOKUP_TOKENS = 1.05
"""Tokens a pass of a target that guesses from its text, where that repeats nothing: 1.05 to 1.2
(Qwen2.5-Coder-1.5B)."""
USUAL = Guessing((2.5, 4.5), 3, 2.2)
"""A draft that has not run yet: the head of smollm2 on conversation and code (decision 0084), and
the embedded pair."""


class Coarseness(NamedTuple):
    """A quantisation of drafts made from the target, with figures of Qwen2.5-Coder-1.5B in Q8_0."""

    kind: str
    bits: float
    """Bits per weight of layers."""
    guessing: Guessing


COARSENESSES = (
    Coarseness("Q4_0", 4.5, Guessing((5.6, 9.0), 10, 10 / 3)),
    Coarseness("Q3_K", 3.5, Guessing((5.3, 8.5), 10, 10 / 3)),
    Coarseness("Q2_K", 3.0, Guessing((4.7, 7.7), 10, 10 / 3)),
)
COMPUTE_BYTES, MAKING_BYTES = 20 * MIB, 16 * MIB
"""Compute buffers of a draft with the embeddings of a batch, and growth of a process that makes a
draft, before it loads the pair to measure it."""
MAX_LOGITS_BYTES, N_DRAFT_NODES = 17 * MIB, 33
"""Logits of a draft's nodes, for the largest head."""
MAX_SAVED_SHARE = 0.9
"""Largest share of a pinned weight that its copy is counted as, if a draft is as large as its
target."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes that a machine reads and multiplies per second."""

    disk_bytes_per_s: float = USUAL_BYTES_PER_S
    n_threads: int = USUAL_THREADS

    def compute_s(self, nbytes: float, bytes_per_s: float = TOKEN_BYTES_PER_S) -> float:
        """Seconds of multiplying so many weights."""
        return nbytes / (bytes_per_s * min(self.n_threads, MOST_THREADS) / USUAL_THREADS)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to write a text under a plan."""

    plan: MemoryPlan
    weight_bytes: int
    """Weights that a pass over one token computes with."""
    guessing: Guessing = ALONE
    draft: str = ""
    """Kind of draft."""
    draft_bytes: int = 0
    """Memory that it takes beside the plan."""
    file_bytes: int = 0
    saved_share: float = 0.0
    """Share of a pinned weight's memory that a draft's copy of it has had."""
    sizes: DraftSizes | None = None
    """Sizes of a draft made from the target."""

    def rates(self, speed: Speed) -> tuple[float, float]:
        """Tokens per second in conversation, and on code."""
        low, high = self.guessing.tokens
        seconds = max(self._seconds(speed), MIN_S)
        return low / seconds, high / seconds

    def _seconds(self, speed: Speed) -> float:
        """Seconds of a round. A draft beside the plan has memory of pinned weights."""
        plan, weight_bytes, guessing = self.plan, self.weight_bytes, self.guessing
        read_bytes, merged_s = plan.least_bytes_per_pass, 0.0
        if plan.paged and self.draft_bytes:
            unread_bytes = self.sizes.unread_bytes if self.sizes else 0
            room_bytes = max(0, weight_bytes - read_bytes - self.draft_bytes)
            pinned_bytes = int(room_bytes / (1 - self.saved_share))
            read_bytes = max(0, weight_bytes - unread_bytes - pinned_bytes)
            merged_s = (read_bytes + unread_bytes) / MERGED_BYTES_PER_S * (self.draft in NESTED)
        rows_cost = guessing.rows_cost / (1 if plan.paged else PAGED_COST)
        compute_s = rows_cost * speed.compute_s(weight_bytes)
        pass_s = max(read_bytes / speed.disk_bytes_per_s, merged_s, compute_s)
        return pass_s + guessing.n_steps * speed.compute_s(self.file_bytes, DRAFT_BYTES_PER_S)


def fastest(candidates: Iterable[Strategy], speed: Speed) -> Strategy | None:
    """The candidate with the highest rate in conversation; None if there is none."""
    return max(candidates, key=lambda one: one.rates(speed)[0], default=None)


def buffer_bytes(plan: MemoryPlan) -> int:
    """Estimated memory of a draft besides its weights, beside the target of `plan`."""
    target = {row.what: row.nbytes for row in plan.rows if row.owner == "target"}
    kv_bytes = sum(nbytes for what, nbytes in target.items() if what.startswith("KV cache"))
    kv_bytes = kv_bytes * min(plan.ctx_size, DRAFT_CTX_SIZE) // max(1, plan.ctx_size)
    logits_bytes = sum(nbytes for what, nbytes in target.items() if what.startswith("logits"))
    logits_bytes = N_DRAFT_NODES * logits_bytes // plan.max_nodes
    graph_bytes = target.get("compute graphs", 0)
    fixed_bytes = COMPUTE_BYTES + MAKING_BYTES + graph_bytes
    return fixed_bytes + kv_bytes + min(MAX_LOGITS_BYTES, logits_bytes)


# Candidates


def beside(plan: MemoryPlan, weight_bytes: int, draft: str, file_bytes: int) -> Strategy:
    """The target with a usual draft, for which weights pinned under the `plan` give memory up."""
    draft_bytes = file_bytes + buffer_bytes(plan)
    return Strategy(plan, weight_bytes, USUAL, draft, draft_bytes, file_bytes)


def own_drafts(plan: MemoryPlan, weight_bytes: int, sizes: Iterable[DraftSizes]) -> list[Strategy]:
    """Drafts of these sizes, made from a target, that fit beside it under its `plan` without one.

    What a coarse copy is made of needs none where it stays pinned, which pins more.
    """
    if not plan.paged or not weight_bytes:
        return []
    made = []
    for one in sizes:
        own = beside(plan, weight_bytes, one.kind, one.weight_bytes)
        if one.kind in NESTED:
            # measured in lines of 10: 3.7 and 6.5 tokens with 2.6 bits, 6.2 and 10 with 4.5
            guessing = Guessing((0.3 + 1.3 * one.bits, 1.7 + 1.85 * one.bits), 10, 10 / 3)
        else:
            guessing = next(a.guessing for a in COARSENESSES if a.kind == one.kind)
            own = replace(own, saved_share=min(MAX_SAVED_SHARE, one.weight_bytes / weight_bytes))
        made.append(replace(own, guessing=guessing, sizes=one))
    return [one for one in made if one.draft_bytes <= plan.budget_bytes - plan.smallest_bytes]


def own_draft(
    plan: MemoryPlan, sizes: Iterable[DraftSizes], disk_bytes_per_s: float = USUAL_BYTES_PER_S
) -> Strategy | None:
    """The fastest draft made from a target under its `plan`; None if not even code pays."""
    speed, weight_bytes = Speed(disk_bytes_per_s), _used_bytes(plan)
    best = fastest(own_drafts(plan, weight_bytes, sizes), speed)
    without, _ = Strategy(plan, weight_bytes).rates(speed)
    return best if best and max(best.rates(speed)) >= MIN_SPEEDUP * without else None


# Sizes of trees


def _used_bytes(plan: MemoryPlan) -> int:
    """Weights that a pass over one token of a paged target computes with."""
    used_bytes = sum(segment.nbytes for segment in plan.segments)
    if plan.experts is not None:
        used_bytes += int(plan.experts.used_share * plan.experts.room_bytes)
    return used_bytes


def prices_of(plan: MemoryPlan, disk_bytes_per_s: float, compute_s: float = 0.0) -> Prices:
    """Prices of passes under `plan` that read from a disk of this speed and compute one row in
    `compute_s`, which is unknown if it is 0."""
    prices = Prices()
    prices.read_s = max(0, plan.streamed_read_bytes - plan.lent_bytes) / disk_bytes_per_s
    if plan.experts is not None:
        prices.used_share = plan.experts.used_share
        if plan.paged:
            missing_bytes = plan.experts.missing_bytes(plan.expert_bytes)
            prices.all_experts_s = missing_bytes / disk_bytes_per_s
    if compute_s:
        prices.put(1, compute_s)
    return prices


def best_tree(plan: MemoryPlan, disk_bytes_per_s: float) -> Point:
    """The best round with a typical draft where only reads take time."""
    tokens = theory.tree_tokens(np.arange(plan.max_nodes, dtype=np.float64))
    return prices_of(plan, disk_bytes_per_s).best(tokens)


def best_plan(
    plans: Sequence[MemoryPlan], speed: Speed, n_texts: int = 1, may_look_up: bool = False
) -> MemoryPlan:
    """The plan for the largest trees that has about the highest rate, of plans that differ in
    `max_nodes`; a resident target has none larger than usual.

    A target that `may_look_up` guesses from its text if it pages and passes read little more.
    """
    few_first = sorted(plans, key=lambda one: one.max_nodes)
    if may_look_up:
        without, guessing = few_first[0], few_first[-1]
        most = LOOKUP_TOKENS * without.bytes_per_pass
        return guessing if guessing.paged and guessing.bytes_per_pass <= most else without
    ordered = sorted(few_first, key=lambda one: (one.paged, -one.max_nodes * one.paged))
    rates = [rate_of_trees(one, n_texts, speed) for one in ordered]
    least = (1 - LARGER_TREE_COST) * max(rates)
    return next(one for one, rate in zip(ordered, rates, strict=True) if rate >= least)


def rate_of_trees(plan: MemoryPlan, n_texts: int, speed: Speed) -> float:
    """Tokens per second with the best trees; those of a resident target are of usual size."""
    n_most = plan.max_nodes if plan.paged else min(plan.max_nodes, n_texts + USUAL_DRAFT_MAX)
    n_guesses = np.arange(max(1, n_most - n_texts + 1), dtype=np.float64)
    row_s = speed.compute_s(_used_bytes(plan))
    prices = prices_of(plan, speed.disk_bytes_per_s, row_s)
    prices.put(len(n_guesses), row_s * (1 + (len(n_guesses) - 1) * FURTHER_ROW_COST))
    best = prices.best(n_texts * theory.tree_tokens(n_guesses / n_texts))
    return best.tokens / max(best.seconds, MIN_S)


# Texts at once

AUTO_TEXTS = (1, 2, 4, 8)
"""Values of n_parallel that "auto" tries; a pass over more texts takes too long to wait for."""
MOST_FOR_ROOM = 1.05
"""Most that a pass of a short text may read, relative to another plan, for the sake of places for
other texts, or of a longer context."""


def is_as_fast(plan: MemoryPlan, other: MemoryPlan) -> bool:
    """True if a short text that is alone is about as fast under `plan` as under another one."""
    kind, other_kind = (
        (one.paged, one.has_draft, one.max_nodes > one.n_parallel) for one in (plan, other)
    )
    most = MOST_FOR_ROOM * other.least_bytes_per_pass
    is_as_large = plan.batch_size >= other.batch_size
    return kind == other_kind and is_as_large and plan.least_bytes_per_pass <= most


def texts_at_once(
    planned_for: Callable[[int], MemoryPlan | None], keeps_one_text_fast: bool
) -> MemoryPlan | None:
    """The plan for the most texts whose passes read no more for each text than the plan for one,
    or with `keeps_one_text_fast` under which a text that is alone is about as fast.

    None if there is no plan. Models whose prompts would round otherwise beside other texts write
    one at a time.
    """
    alone = planned_for(1)
    if alone is None or not alone.text_bytes or alone.texts_alter_prompts:
        return alone

    def is_good(plan: MemoryPlan) -> bool:
        if keeps_one_text_fast:
            return is_as_fast(plan, alone)
        most = plan.n_parallel * alone.least_bytes_per_pass
        return plan.paged == alone.paged and plan.least_bytes_per_pass <= most

    tried = map(planned_for, AUTO_TEXTS[:0:-1])
    return next((plan for plan in tried if plan and is_good(plan)), alone)
