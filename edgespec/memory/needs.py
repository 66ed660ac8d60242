"""Needs of models for the process's memory, and the division of a budget between target and draft.

Pure arithmetic on what was measured elsewhere: it knows no runtime and no machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edgespec.errors import BudgetError
from edgespec.memory.budget import (
    MIB,
    MemoryPlan,
    MemoryRow,
    SegmentSize,
    least_bytes,
    loaded_before,
    plan_memory,
)
from edgespec.memory.experts import ExpertSizes
from edgespec.settings.config import USUAL_DRAFT_MAX

HEADROOM_BYTES = 6 * MIB
HEADROOM_SHARE = 0.01
"""Share of the other rows; with the fixed part it covers what no row names: graphs, threads,
buffers of Python."""
BATCH_SHARE = 0.05
"""Share of the budget for a batch: a larger batch reads a prompt in fewer passes, and leaves less
for weights."""
TREE_SIZES = (1 + 96, 1 + 64, 1 + USUAL_DRAFT_MAX, 1 + 16)
"""Sizes of trees that a plan chooses from, the root included, largest first."""
FOREST_SIZE, FOREST_TEXTS = 1 + 192, 4
"""A larger size, for passes that so many texts or more share: each has a part of the nodes."""

AUTO_TEXTS = (1, 2, 4, 8)
"""Numbers that are tried: a pass over more texts is long to wait for, whatever it brings."""


@dataclass(frozen=True, slots=True)
class BatchNeeds:
    """Memory for computing in batches of one size."""

    batch_size: int
    """Tokens of a prompt in one batch, at most."""
    rows: tuple[MemoryRow, ...]
    paged: tuple[MemoryRow, ...] = ()
    """Besides, where weights are paged."""
    max_nodes: int = 1
    """Most nodes of one pass. The text does not depend on it either."""

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in (*self.rows, *self.paged))


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """Memory that one model takes in each of the ways in which it can be loaded.

    A model without `resident` must be paged, one without `cuts` cannot be.
    """

    fixed: tuple[MemoryRow, ...]
    """In any case."""
    batches: tuple[BatchNeeds, ...]
    """For each number of nodes the larger first, the least one last. The text does not depend on
    which it is."""
    resident: tuple[MemoryRow, ...] | None
    """Weights that stay in memory, and as LOADING what only loading takes."""
    paged: tuple[MemoryRow, ...] = ()
    """Besides pinned segments and the ring."""
    cuts: tuple[tuple[SegmentSize, ...], ...] = ()
    """Ways to cut the weights, coarse first."""
    experts: ExpertSizes | None = None
    """Sizes of a mixture's experts that are read one by one; no cut holds them."""
    shared: tuple[MemoryRow, ...] = ()
    """Rows that models share, such as a library: they count once."""
    state_bytes: int = 0
    """Most that a state file takes while it is written or read, besides small buffers."""

    def rows_in_any_case(self, batch: int = 0) -> tuple[MemoryRow, ...]:
        """Rows that hold however the model is loaded, with the `batch`-th batch size."""
        return (*self.fixed, *self.batches[batch].rows)

    def rows_when_paged(self, batch: int = 0) -> tuple[MemoryRow, ...]:
        """Besides those."""
        return (*self.paged, *self.batches[batch].paged)


def plan_models(
    budget_bytes: int,
    process_bytes: int,
    target: ModelNeeds,
    draft: ModelNeeds | None = None,
    *,
    worth: Callable[[MemoryPlan], float],
    enforced: bool = True,
    largest_process_bytes: int | None = None,
    others: Sequence[MemoryRow] = (),
) -> MemoryPlan:
    """Divide the budget of a process that takes `process_bytes` besides its models.

    The batches are the largest that the budget affords, or the smallest that there are; the trees
    those of the plan that is `worth` the most. What is refused, and the smallest budget
    that is named, follow from the smallest ones: they do not depend on the budget. The one that is
    named is enough for a process of `largest_process_bytes`,
    too: so much may the next one take. `others` are rows of neither model. Raises BudgetError.
    """
    models = {"target": target} | ({"draft": draft} if draft else {})
    shared = (row for needs in models.values() for row in needs.shared)
    others = [*dict.fromkeys(shared), *others]
    least = {owner: len(needs.batches) - 1 for owner, needs in models.items()}
    smallest, named = (
        _divide(_UNLIMITED, [_process_row(size), *others], models, least, enforced).smallest_bytes
        for size in (process_bytes, max(process_bytes, largest_process_bytes or 0))
    )
    if budget_bytes >= smallest:
        plans = []
        for n_nodes in {batch.max_nodes for batch in target.batches}:
            for choice in _choices(models, n_nodes, budget_bytes):
                with suppress(BudgetError):
                    rows = [_process_row(process_bytes), *others]
                    plans.append(_divide(budget_bytes, rows, models, choice, enforced))
                    break
        if plans:
            return replace(best_tree_size(plans, worth), smallest_bytes=named)
    divided = _divide(
        budget_bytes,
        [_process_row(process_bytes), *others],
        models,
        least,
        enforced,
        named - smallest,
    )
    return replace(divided, smallest_bytes=named)


def affordable(batch_bytes: Sequence[int], budget_bytes: int) -> int:
    """Index of the largest batch within BATCH_SHARE of the budget, else of the last; larger batches
    come first."""
    within = (i for i, nbytes in enumerate(batch_bytes) if nbytes <= BATCH_SHARE * budget_bytes)
    return next(within, len(batch_bytes) - 1)


def _choices(
    models: Mapping[str, ModelNeeds], n_nodes: int, budget_bytes: int
) -> list[dict[str, int]]:
    """Batch sizes by owner: those that the budget affords for `n_nodes` nodes, then the
    smallest."""
    affords, least = {}, {}
    for owner, needs in models.items():
        batches = [
            (index, batch.nbytes)
            for index, batch in enumerate(needs.batches)
            if owner == "draft" or batch.max_nodes == n_nodes
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
    """The plan with these batches. The draft is loaded first, the target into what is left."""
    target, batch = models["target"], choice["target"]
    fixed, paged = target.rows_in_any_case(batch), target.rows_when_paged(batch)
    rows = [*others]
    if "draft" in models:
        draft = models["draft"]
        later_bytes = least_bytes(fixed, target.cuts, target.resident, paged, target.experts)
        rows += draft.rows_in_any_case(choice["draft"])
        rows += loaded_before(later_bytes, draft.resident or ())
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


def best_tree_size(plans: Sequence[MemoryPlan], worth: Callable[[MemoryPlan], float]) -> MemoryPlan:
    """The plan worth the most, of plans that differ in the most nodes of a pass.

    A resident target reads nothing: its trees are small, and the usual buffers hold them.
    """
    resident = sorted((plan for plan in plans if not plan.paged), key=lambda plan: plan.max_nodes)
    if resident:
        usual = [plan for plan in resident if plan.max_nodes <= 1 + USUAL_DRAFT_MAX]
        return (usual or resident[:1])[-1]
    return max(plans, key=worth)


def best_number(plans: Sequence[MemoryPlan]) -> int:
    """The number of texts at once of the best of `plans`, which are in the order of that number.

    The largest that keeps all weights in memory; where none does, the one with the most texts for
    the bytes that a pass reads.
    """
    resident = [plan for plan in plans if not plan.paged]
    if resident:
        return resident[-1].n_parallel
    return max(plans, key=lambda plan: plan.n_parallel / max(1, plan.bytes_per_pass)).n_parallel
