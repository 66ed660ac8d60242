"""Memory needs of models, and the division of a budget between target and draft.

Pure arithmetic on sizes that were measured elsewhere: it knows no runtime and no machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from edgespec.errors import BudgetError
from edgespec.memory.budget import (
    COPIES,
    MIB,
    MemoryPlan,
    MemoryRow,
    beside_later,
    least_bytes,
    plan_memory,
)
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.settings.config import USUAL_DRAFT_MAX

HEADROOM_BYTES = 4 * MIB
HEADROOM_SHARE = 0.01
"""Headroom beyond HEADROOM_BYTES as a share of the other rows; it covers what no row names: graphs,
threads, buffers of Python."""
BATCH_SHARE = 0.05
"""Largest share of the budget for the buffers of a batch: a larger batch reads a prompt in fewer
passes and leaves less memory for weights."""
TREE_SIZES = (1 + 96, 1 + 64, 1 + USUAL_DRAFT_MAX, 1 + 32, 1 + 16)
"""Tree sizes that a plan chooses from, the root included, largest first."""
LARGER_TREE_COST = 0.02
"""Largest share of the score that a plan loses for larger trees, which few texts need."""
FOREST_SIZE, FOREST_TEXTS = 1 + 192, 4
"""A larger tree size for FOREST_TEXTS or more texts, which share the nodes of a pass."""


def tree_sizes(n_texts: int) -> tuple[int, ...]:
    """Tree sizes that a plan chooses from for `n_texts` texts, largest first."""
    return (FOREST_SIZE, *TREE_SIZES) if n_texts >= FOREST_TEXTS else TREE_SIZES


@dataclass(frozen=True, slots=True)
class BatchNeeds:
    """Memory for computing with one batch size."""

    batch_size: int
    """Most prompt tokens in one batch."""
    rows: tuple[MemoryRow, ...]
    paged: tuple[MemoryRow, ...] = ()
    """Further rows if weights are paged."""
    max_nodes: int = 1
    """Most nodes of one pass. The text does not depend on it."""
    is_last_resort: bool = False
    """True if it is chosen only by budgets that afford no other: prompts take more passes."""

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in (*self.rows, *self.paged))


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """Memory that one model takes, resident or paged.

    A model without `resident` must be paged, one without `cuts` cannot be.
    """

    fixed: tuple[MemoryRow, ...]
    """Rows that are always needed."""
    batches: tuple[BatchNeeds, ...]
    """Possible batch sizes, for each number of nodes the largest first; the smallest of all is
    last. The text does not depend on the choice."""
    resident: tuple[MemoryRow, ...] | None
    """Rows of a resident model: its weights, and memory needed only while LOADING."""
    paged: tuple[MemoryRow, ...] = ()
    """Rows of a paged model besides pinned segments and the ring."""
    cuts: tuple[tuple[SegmentSize, ...], ...] = ()
    """Possible segmentations of the weights, coarsest first."""
    experts: ExpertSizes | None = None
    """Sizes of experts that are read one by one, which no segment contains."""
    shared: tuple[MemoryRow, ...] = ()
    """Rows that models share, such as a library; they count once."""
    state_bytes: int = 0
    """Most memory for writing or reading a state file, besides small buffers."""
    text_bytes: int = 0
    """About what each further text at once takes; 0 for a model that holds one text."""
    copies: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a draft's copies of weights by their names, not included in `resident`. It needs no
    copy of what a paged target pins."""
    texts_alter_prompts: bool = False
    """With several texts at once, a prompt rounds otherwise and takes longer than with one."""

    def common_rows(self, batch: int = 0) -> tuple[MemoryRow, ...]:
        """Rows needed whether resident or paged, with the `batch`-th batch size."""
        return (*self.fixed, *self.batches[batch].rows)

    def paged_rows(self, batch: int = 0) -> tuple[MemoryRow, ...]:
        """Further rows needed if paged, with the `batch`-th batch size."""
        return (*self.paged, *self.batches[batch].paged)


def plan_models(
    budget_bytes: int,
    process_bytes: int,
    target: ModelNeeds,
    draft: ModelNeeds | None = None,
    *,
    score: Callable[[MemoryPlan], float],
    enforced: bool = True,
    largest_process_bytes: int | None = None,
    others: Sequence[MemoryRow] = (),
    adjustable: bool = False,
) -> MemoryPlan:
    """Divide the budget of a process that takes `process_bytes` besides its models.

    Batches are the largest that the budget affords, otherwise the smallest; the tree size is that
    of the plan with the highest `score`. `smallest_bytes` does not depend on the budget: it is
    computed from the smallest batches and trees, for a process of `largest_process_bytes`, because
    the next process may take more than this one. `others` are rows of neither model. Weights of an
    `adjustable` target are paged, and batches are those of a budget for half of them, as they stay
    when the budget changes. Raises BudgetError.
    """
    adjustable = adjustable and bool(target.cuts)
    if adjustable:
        target = replace(target, resident=None)
    models = {"target": target} | ({"draft": draft} if draft else {})
    shared = (row for needs in models.values() for row in needs.shared)
    others = [*dict.fromkeys(shared), *others]
    least = {owner: len(needs.batches) - 1 for owner, needs in models.items()}
    smallest, named = (
        _divide(_UNLIMITED, [_process_row(size), *others], models, least, enforced).smallest_bytes
        for size in (process_bytes, max(process_bytes, largest_process_bytes or 0))
    )
    rows = [_process_row(process_bytes), *others]
    if budget_bytes >= smallest:
        tried_bytes = budget_bytes
        if adjustable:
            weights = sum(segment.slot_bytes for segment in target.cuts[0])
            tried_bytes = min(budget_bytes, smallest + weights // 2)
        plans = []
        for n_nodes in {batch.max_nodes for batch in target.batches}:
            for choice in _choices(models, n_nodes, tried_bytes):
                with suppress(BudgetError):
                    plans.append(_divide(tried_bytes, rows, models, choice, enforced))
                    break
        if not plans and any(batch.is_last_resort for batch in target.batches):
            with suppress(BudgetError):
                plans.append(_divide(tried_bytes, rows, models, least, enforced))
        if plans:
            best = best_tree_size(plans, score)
            if tried_bytes < budget_bytes:
                best = _divide(budget_bytes, rows, models, best.batches, enforced)
            return replace(best, smallest_bytes=named)
    divided = _divide(
        budget_bytes,
        rows,
        models,
        least,
        enforced,
        named - smallest,
    )
    return replace(divided, smallest_bytes=named)


def affordable(batch_bytes: Sequence[int], budget_bytes: int) -> int:
    """Index of the first batch within BATCH_SHARE of the budget, otherwise of the last one.

    Batches are sorted by size, largest first.
    """
    within = (i for i, nbytes in enumerate(batch_bytes) if nbytes <= BATCH_SHARE * budget_bytes)
    return next(within, len(batch_bytes) - 1)


def _choices(
    models: Mapping[str, ModelNeeds], n_nodes: int, budget_bytes: int
) -> list[dict[str, int]]:
    """Choices of batch index by owner for `n_nodes` nodes: the largest affordable, the smallest."""
    affords, least = {}, {}
    for owner, needs in models.items():
        batches = [
            (index, batch.nbytes)
            for index, batch in enumerate(needs.batches)
            if (owner == "draft" or batch.max_nodes == n_nodes) and not batch.is_last_resort
        ]
        affords[owner] = batches[affordable([n for _, n in batches], budget_bytes)][0]
        least[owner] = batches[-1][0]
    return [affords, least]


_UNLIMITED = 1 << 62


def _process_row(nbytes: int) -> MemoryRow:
    return MemoryRow("process", "interpreter and libraries", nbytes)


def _divide(
    budget_bytes: int,
    others: Sequence[MemoryRow],
    models: Mapping[str, ModelNeeds],
    choice: Mapping[str, int],
    enforced: bool,
    margin_bytes: int = 0,
) -> MemoryPlan:
    """The plan with the chosen batches. The draft is loaded first, then the target."""
    target, batch = models["target"], choice["target"]
    fixed, paged = target.common_rows(batch), target.paged_rows(batch)
    rows = [*others]
    if "draft" in models:
        draft = models["draft"]
        target = _with_copies(target, draft.copies)
        rows += draft.common_rows(choice["draft"])
        least = least_bytes([*rows, *fixed], target.cuts, target.resident, paged, target.experts)
        early = sum(row.nbytes for row in rows if not row.is_late)
        rows += beside_later(draft.resident or (), least - early)
        if draft.copies:
            rows.append(MemoryRow("draft", COPIES, sum(draft.copies.values())))
    rows += fixed
    headroom = HEADROOM_BYTES + int(HEADROOM_SHARE * sum(row.nbytes for row in rows))
    rows.append(MemoryRow("process", "headroom", headroom))
    plan = plan_memory(
        budget_bytes,
        rows,
        target.cuts,
        target.resident,
        paged,
        enforced,
        margin_bytes,
        target.experts,
    )
    computed = target.batches[batch]
    return replace(
        plan,
        batches=dict(choice),
        batch_size=computed.batch_size,
        max_nodes=computed.max_nodes,
    )


def _with_copies(target: ModelNeeds, copies: Mapping[str, int]) -> ModelNeeds:
    """The target's needs, with the sizes of a draft's copies of its segments."""
    if not copies:
        return target
    cuts = []
    for cut in target.cuts:
        of_slices: Counter[str] = Counter()
        for segment in cut:
            of_slices[segment.slice_of] += segment.nbytes
        cuts.append(tuple(_with_copy(segment, copies, of_slices) for segment in cut))
    return replace(target, cuts=tuple(cuts))


def _with_copy(
    segment: SegmentSize, copies: Mapping[str, int], of_slices: Mapping[str, int]
) -> SegmentSize:
    """`segment` with the size of its copies; `of_slices` are the bytes of all slices by matrix."""
    nbytes = sum(copies.get(name, 0) for name in segment.weights)
    if segment.slice_of:
        nbytes = nbytes * segment.nbytes // of_slices[segment.slice_of]
    return replace(segment, copy_bytes=nbytes)


def best_tree_size(plans: Sequence[MemoryPlan], score: Callable[[MemoryPlan], float]) -> MemoryPlan:
    """The plan for the largest trees that has about the highest score, of plans that differ in
    `max_nodes`.

    A resident target reads nothing, so its trees are small: the default size is enough.
    """
    resident = sorted((plan for plan in plans if not plan.paged), key=lambda plan: plan.max_nodes)
    if resident:
        usual = [plan for plan in resident if plan.max_nodes <= 1 + USUAL_DRAFT_MAX]
        return (usual or resident[:1])[-1]
    scores = [score(plan) for plan in plans]
    least = (1 - LARGER_TREE_COST) * max(scores)
    good = [plan for plan, its in zip(plans, scores, strict=True) if its >= least]
    return max(good, key=lambda plan: plan.max_nodes)
