"""Chooses what writes most tokens a second, predicted from sizes before anything is loaded.

Pure arithmetic: a `Speed` says what a machine does, a `Strategy` how long a round takes on it.
Once texts are written, `engine.prices` has what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from edgespec import theory
from edgespec.engine.prices import Point, Prices
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.settings.config import DEFAULT_DRAFT_CTX_SIZE, USUAL_DRAFT_MAX
from edgespec.settings.units import format_size

USUAL_THREADS, MOST_THREADS = 2, 8
"""Threads of the machine that was measured; beyond MOST_THREADS memory limits them."""
TOKEN_BYTES_PER_S, DRAFT_BYTES_PER_S = 10e9, 6e9
"""Weights that USUAL_THREADS multiply per second: in a pass over one token, and in a draft step."""
PAGED_COST = 1.5
"""Time to compute with paged weights, relative to resident ones, which are packed and computed
without stops."""
FURTHER_ROW_COST = 0.5
"""Time to compute a further row of a pass, relative to the first: 0.5 to 0.7 measured, Q8_0 and
Q4_K with AVX2."""
LARGER_TREE_COST = 0.02
"""Largest share of the rate that a plan loses for larger trees, which few texts need."""
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


LOOKUPS = Guessing((1.05, 1.2), 0, 1.0)
"""A target that pages alone: text that repeats nothing yields 1.05 to 1.2 tokens a pass
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
    Coarseness("Q3_K_S", 3.5, Guessing((5.3, 8.5), 10, 10 / 3)),
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
class Strategy:
    """A way to write a text, and the seconds of its rounds."""

    tokens: tuple[float, float]
    """Tokens per pass in conversation, and on code."""
    read_s: float
    compute_s: float
    rest_s: float = 0.0
    """Seconds of a round outside its pass."""
    draft: str = ""
    """Kind of draft."""
    draft_bytes: int = 0
    """Memory that it takes."""
    file_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return max(self.read_s, self.compute_s) + self.rest_s

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens per second in conversation, and on code."""
        seconds = max(self.seconds, 1e-9)
        return self.tokens[0] / seconds, self.tokens[1] / seconds

    def speedup(self, other: Strategy) -> tuple[float, float]:
        """Tokens per second relative to another candidate."""
        mine, others = self.rates, other.rates
        return mine[0] / others[0], mine[1] / others[1]


def choose(candidates: Iterable[Strategy]) -> list[Strategy]:
    """The candidates, fastest first."""
    return sorted(candidates, key=lambda candidate: -sum(candidate.rates))


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes that a machine reads and multiplies per second."""

    disk_bytes_per_s: float = USUAL_BYTES_PER_S
    n_threads: int = USUAL_THREADS

    def compute_s(self, nbytes: float, bytes_per_s: float = TOKEN_BYTES_PER_S) -> float:
        """Seconds of multiplying so many weights."""
        return nbytes / (bytes_per_s * min(self.n_threads, MOST_THREADS) / USUAL_THREADS)

    def rate(self, plan: MemoryPlan, n_texts: int = 1) -> float:
        """Expected tokens per second of the best round with `n_texts` texts under `plan`."""
        n_guesses = np.arange(max(1, plan.max_nodes - n_texts + 1), dtype=np.float64)
        used_bytes = sum(segment.nbytes for segment in plan.segments)
        if plan.experts is not None:
            used_bytes += int(plan.experts.used_share * plan.experts.room_bytes)
        row_s = self.compute_s(used_bytes)
        prices = prices_of(plan, self.disk_bytes_per_s, row_s)
        prices.put(len(n_guesses), row_s * (1 + (len(n_guesses) - 1) * FURTHER_ROW_COST))
        best = prices.best(n_texts * theory.tree_tokens(n_guesses / n_texts))
        return best.tokens / max(best.seconds, 1e-9)

    def best_plan(
        self, plans: Sequence[MemoryPlan], n_texts: int = 1, may_look_up: bool = False
    ) -> MemoryPlan:
        """The plan for the largest trees that has about the highest rate, of plans that differ in
        `max_nodes`.

        A resident target reads nothing, so its trees are small: the default size is enough. A
        target that `may_look_up` guesses from its text if it pages and passes read little more.
        """
        if may_look_up:
            alone, *plans = sorted(plans, key=lambda plan: plan.max_nodes)
            most_bytes = LOOKUPS.tokens[0] * alone.streamed_read_bytes
            plans = [one for one in plans if alone.paged and one.streamed_read_bytes <= most_bytes]
            plans = plans or [alone]
        resident = sorted((one for one in plans if not one.paged), key=lambda one: one.max_nodes)
        if resident:
            usual = [plan for plan in resident if plan.max_nodes <= 1 + USUAL_DRAFT_MAX]
            return (usual or resident[:1])[-1]
        rates = [self.rate(plan, n_texts) for plan in plans]
        least = (1 - LARGER_TREE_COST) * max(rates)
        good = [plan for plan, rate in zip(plans, rates, strict=True) if rate >= least]
        return max(good, key=lambda plan: plan.max_nodes)

    def alone(self, plan: MemoryPlan, weight_bytes: int, looks_up: bool = False) -> Strategy:
        """A target without a draft, whose passes compute with `weight_bytes`, and which guesses
        from its text if it `looks_up` and pages."""
        tokens = LOOKUPS.tokens if looks_up and plan.paged else (1.0, 1.0)
        computing_s = self.compute_s(weight_bytes / (1 if plan.paged else PAGED_COST))
        return Strategy(tokens, plan.bytes_per_pass / self.disk_bytes_per_s, computing_s)

    def paired(self, plan: MemoryPlan, weight_bytes: int, draft_bytes: int) -> Strategy:
        """A target with a usual draft under the plan of both."""
        read_s = plan.bytes_per_pass / self.disk_bytes_per_s
        return self._guessing(USUAL, read_s, weight_bytes, draft_bytes)

    def _guessing(
        self, guessing: Guessing, read_s: float, weight_bytes: int, file_bytes: int
    ) -> Strategy:
        compute_s = guessing.rows_cost * self.compute_s(weight_bytes)
        steps_s = guessing.n_steps * self.compute_s(file_bytes, DRAFT_BYTES_PER_S)
        return Strategy(guessing.tokens, read_s, compute_s, steps_s)

    def drafted(
        self,
        plan: MemoryPlan,
        weight_bytes: int,
        draft: str,
        file_bytes: int,
        guessing: Guessing = USUAL,
        is_copy: bool = False,
    ) -> Strategy:
        """The target with a draft of `file_bytes`, whose memory weights pinned under the `plan`
        without it give up.

        Where a draft is a copy of the target's weights, what stays pinned needs none, which pins
        more.
        """
        draft_bytes = file_bytes + buffer_bytes(plan)
        pinned_bytes = max(0, weight_bytes - plan.bytes_per_pass - draft_bytes)
        saved_share = min(MAX_SAVED_SHARE, is_copy * file_bytes / weight_bytes)
        read_bytes = max(0, weight_bytes - int(pinned_bytes / (1 - saved_share)))
        read_s = read_bytes / self.disk_bytes_per_s if plan.paged else 0.0
        found = self._guessing(guessing, read_s, weight_bytes, file_bytes)
        return replace(found, draft=draft, draft_bytes=draft_bytes, file_bytes=file_bytes)


def buffer_bytes(plan: MemoryPlan) -> int:
    """Estimated memory of a draft besides its weights, beside the target of `plan`."""
    target = {row.what: row.nbytes for row in plan.rows if row.owner == "target"}
    kv_bytes = sum(nbytes for what, nbytes in target.items() if what.startswith("KV cache"))
    kv_bytes = kv_bytes * min(plan.ctx_size, DEFAULT_DRAFT_CTX_SIZE) // max(1, plan.ctx_size)
    logits_bytes = sum(nbytes for what, nbytes in target.items() if what.startswith("logits"))
    logits_bytes = N_DRAFT_NODES * logits_bytes // plan.max_nodes
    graph_bytes = target.get("compute graphs", 0)
    fixed_bytes = COMPUTE_BYTES + MAKING_BYTES + graph_bytes
    return fixed_bytes + kv_bytes + min(MAX_LOGITS_BYTES, logits_bytes)


# Drafts made from the target


def own_drafts(
    plan: MemoryPlan, weight_bytes: int, trimmed_bytes: Callable[[float], int], speed: Speed
) -> list[Strategy]:
    """Drafts made from a target that fit beside it under its `plan` without one, fastest first.

    `trimmed_bytes` gives the size of a draft with so many bits per weight.
    """
    if not plan.paged or not weight_bytes:
        return []
    made = (
        speed.drafted(plan, weight_bytes, one.kind, nbytes, one.guessing, is_copy=True)
        for one in COARSENESSES
        if (nbytes := trimmed_bytes(one.bits))
    )
    room_bytes = plan.budget_bytes - plan.smallest_bytes
    return choose(one for one in made if one.draft_bytes <= room_bytes)


def own_draft(
    plan: MemoryPlan,
    trimmed_bytes: Callable[[float], int],
    disk_bytes_per_s: float = USUAL_BYTES_PER_S,
    is_promised: bool = False,
) -> tuple[Strategy, tuple[float, float]] | None:
    """The fastest draft made from a target under its `plan`, and its speedup; None if none is worth
    making: on code, or where it is promised also in conversation."""
    speed, weight_bytes = Speed(disk_bytes_per_s), sum(one.nbytes for one in plan.segments)
    needed = min if is_promised else max
    for best in own_drafts(plan, weight_bytes, trimmed_bytes, speed)[:1]:
        speedup = best.speedup(speed.alone(plan, weight_bytes))
        if needed(speedup) >= MIN_SPEEDUP:
            return best, speedup
    return None


def hint(
    plan: MemoryPlan, trimmed_bytes: Callable[[float], int], disk_bytes_per_s: Callable[[], float]
) -> Sequence[str]:
    """A note about what a draft made from the target would bring; none if none would be made, or if
    no guesses are wanted. The disk is asked only where the usual one lets a draft pay."""
    chosen = None
    if plan.max_nodes > 1 and own_draft(plan, trimmed_bytes, is_promised=True):
        disk = disk_bytes_per_s() or USUAL_BYTES_PER_S
        chosen = own_draft(plan, trimmed_bytes, disk, is_promised=True)
    if chosen is None:
        return []
    best, (low, high) = chosen
    return [
        '`draft="self"` makes a draft from the target, once, in minutes '
        f"({format_size(best.file_bytes)} in the cache): expect {low:.1f} to {high:.1f} times as "
        "many tokens per second"
    ]


# Sizes of trees


def prices_of(plan: MemoryPlan, disk_bytes_per_s: float | None, compute_s: float = 0.0) -> Prices:
    """Prices of passes under `plan` that read from a disk of this speed and compute one row in
    `compute_s`; 0 means unknown."""
    prices = Prices()
    if disk_bytes_per_s:
        prices.read_s = max(0, plan.streamed_read_bytes - plan.lent_bytes) / disk_bytes_per_s
    if plan.experts is not None:
        prices.used_share = plan.experts.used_share
        if plan.paged and disk_bytes_per_s:
            missing_bytes = plan.experts.missing_bytes(plan.expert_bytes)
            prices.all_experts_s = missing_bytes / disk_bytes_per_s
    if compute_s:
        prices.put(1, compute_s)
    return prices


def best_tree(plan: MemoryPlan, disk_bytes_per_s: float) -> Point:
    """The best round with a typical draft where only reads take time."""
    tokens = theory.tree_tokens(np.arange(plan.max_nodes, dtype=np.float64))
    return prices_of(plan, disk_bytes_per_s).best(tokens)


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
    if kind != other_kind:
        return False
    most = MOST_FOR_ROOM * other.least_bytes_per_pass
    return plan.batch_size >= other.batch_size and plan.least_bytes_per_pass <= most


def texts_at_once(
    planned_for: Callable[[int], MemoryPlan | None], keeps_one_text_fast: bool, speed: Speed
) -> MemoryPlan | None:
    """The plan with the best `n_parallel`, of those by number of texts; None if there is none.

    It is the largest that keeps all weights in memory, otherwise that with most tokens a second of
    all texts; or with `keeps_one_text_fast` the largest under which a text that is alone is about
    as fast as under the plan for one. Models whose prompts would round otherwise beside other texts
    write one at a time.
    """
    alone = planned_for(1)
    if alone is None or not alone.text_bytes or alone.texts_alter_prompts:
        return alone
    if keeps_one_text_fast:
        tried = (planned_for(n) for n in AUTO_TEXTS[:0:-1])
        return next((plan for plan in tried if plan and is_as_fast(plan, alone)), alone)
    more = takewhile(lambda one: one is not None, map(planned_for, AUTO_TEXTS[1:]))
    plans = [alone, *filter(None, more)]
    resident = [plan for plan in plans if not plan.paged]
    return resident[-1] if resident else max(plans, key=lambda one: speed.rate(one, one.n_parallel))
