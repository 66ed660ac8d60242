"""Chooses the coarseness of a draft made from the target, by expected tokens per second.

Pure arithmetic on a plan without a draft: tokens per pass of real pairs over the seconds of a pass
with the memory that the draft leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.settings.config import DEFAULT_DRAFT_CTX_SIZE
from edgespec.settings.units import format_size


@dataclass(frozen=True, slots=True)
class Coarseness:
    """A quantisation of drafts, with figures of Qwen2.5-Coder-1.5B in Q8_0 as the target."""

    kind: str
    bits: float
    """Bits per weight of layers."""
    tokens_per_pass: tuple[float, float]
    """In conversation, and on code."""


COARSENESSES = (
    Coarseness("Q4_0", 4.5, (5.6, 9.0)),
    Coarseness("Q3_K_S", 3.5, (5.3, 8.5)),
    Coarseness("Q2_K", 3.0, (4.7, 7.7)),
)
COMPUTE_BYTES = 20 * MIB
"""Compute buffers of a draft, and the embeddings of a batch."""
MAKING_BYTES = 16 * MIB
"""Growth of a process that makes a draft, before it loads the pair to measure it."""
MAX_LOGITS_BYTES = 17 * MIB
"""Logits of a draft's nodes, for the largest head."""
N_DRAFT_NODES = 33
N_STEPS = 10
"""Draft steps of a round that are not hidden behind reads."""
DRAFT_BYTES_PER_S, TREE_BYTES_PER_S, TOKEN_BYTES_PER_S = 6e9, 3e9, 10e9
"""Weights that USUAL_THREADS multiply per second: in a draft step, in a pass over a tree, and in a
pass over one token."""
USUAL_THREADS, MOST_THREADS = 2, 8
"""Threads of the machine that was measured; beyond MOST_THREADS memory limits them."""
MAX_SAVED_SHARE = 0.9
"""Largest share of a pinned weight that its copy is counted as, if a draft is as large as its
target."""
USUAL_DISK_BYTES_PER_S = 1e9
MIN_SPEEDUP = 1.1
"""Least expected speedup for which a draft is made: it takes disk space and minutes."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A draft that could be made, and the speed that it is expected to bring."""

    coarseness: Coarseness
    file_bytes: int
    draft_bytes: int
    """Memory that it takes."""
    speedup: tuple[float, float]
    """Tokens per second with it, relative to none: in conversation, and on code."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Expected seconds of passes over a target and of its draft's steps."""

    plan: MemoryPlan
    """The plan without a draft."""
    weight_bytes: int
    """Weights that a pass computes with."""
    disk_bytes_per_s: float
    n_threads: int = USUAL_THREADS

    @classmethod
    def of(cls, plan: MemoryPlan, disk_bytes_per_s: float | None = None) -> Self:
        """The speed of the usual machine, where no disk is given on the usual one."""
        weight_bytes = sum(segment.nbytes for segment in plan.segments)
        return cls(plan, weight_bytes, disk_bytes_per_s or USUAL_DISK_BYTES_PER_S)

    def alone_s(self) -> float:
        """Seconds of a pass over one token, without a draft."""
        return self._pass_s(self.plan.bytes_per_pass, TOKEN_BYTES_PER_S)

    def round_s(
        self, draft_bytes: int, file_bytes: int, n_steps: int = N_STEPS, copy_bytes: int = 0
    ) -> float:
        """Seconds of a round with a draft of `file_bytes` whose memory pinned weights give up.

        `copy_bytes` are copies of the target's weights: what stays pinned needs none, which pins
        more.
        """
        steps_s = n_steps * file_bytes / (DRAFT_BYTES_PER_S * self._faster)
        pinned_bytes = max(0, self.weight_bytes - self.plan.bytes_per_pass - draft_bytes)
        saved_share = min(MAX_SAVED_SHARE, copy_bytes / self.weight_bytes)
        read_bytes = self.weight_bytes - int(pinned_bytes / (1 - saved_share))
        return self._pass_s(max(0, read_bytes), TREE_BYTES_PER_S) + steps_s

    def _pass_s(self, read_bytes: int, bytes_per_s: float) -> float:
        read_s = read_bytes / self.disk_bytes_per_s if self.plan.paged else 0.0
        return max(read_s, self.weight_bytes / (bytes_per_s * self._faster))

    @property
    def _faster(self) -> float:
        return min(self.n_threads, MOST_THREADS) / USUAL_THREADS


def candidates(
    plan: MemoryPlan, trimmed_bytes: Callable[[float], int], speed: Speed
) -> list[DraftCandidate]:
    """Drafts that fit beside a target under its `plan` without a draft, the fastest first.

    `trimmed_bytes` gives the size of a draft with so many bits per weight.
    """
    if not plan.paged or not speed.weight_bytes:
        return []
    found = []
    for one in COARSENESSES:
        file_bytes = trimmed_bytes(one.bits)
        draft_bytes = file_bytes + buffer_bytes(plan)
        if not file_bytes or plan.smallest_bytes + draft_bytes > plan.budget_bytes:
            continue
        round_s = speed.round_s(draft_bytes, file_bytes, copy_bytes=file_bytes)
        ratio = speed.alone_s() / round_s
        low, high = (tokens * ratio for tokens in one.tokens_per_pass)
        found.append(DraftCandidate(one, file_bytes, draft_bytes, (low, high)))
    return sorted(found, key=lambda candidate: -sum(candidate.speedup))


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


def choice(
    plan: MemoryPlan,
    trimmed_bytes: Callable[[float], int],
    disk_bytes_per_s: float | None,
    is_promised: bool = False,
) -> DraftCandidate | None:
    """The fastest draft beside a target under its `plan`; None if none is worth making: on code,
    or where it is promised also in conversation."""
    found = candidates(plan, trimmed_bytes, Speed.of(plan, disk_bytes_per_s))
    needed = min if is_promised else max
    return found[0] if found and needed(found[0].speedup) >= MIN_SPEEDUP else None


def hint(
    plan: MemoryPlan, trimmed_bytes: Callable[[float], int], disk_bytes_per_s: Callable[[], float]
) -> Sequence[str]:
    """A note about what a draft made from the target would bring; none if none would be made, or if
    no guesses are wanted. The disk is asked only where the usual one lets a draft pay."""
    chosen = None
    if plan.max_nodes > 1 and choice(plan, trimmed_bytes, None, is_promised=True):
        chosen = choice(plan, trimmed_bytes, disk_bytes_per_s(), is_promised=True)
    if chosen is None:
        return []
    low, high = chosen.speedup
    return [
        '`draft="self"` makes a draft from the target, once, in minutes '
        f"({format_size(chosen.file_bytes)} in the cache): expect {low:.1f} to {high:.1f} times as "
        "many tokens per second"
    ]
