"""Memory needs of models, in sizes that were measured elsewhere.

Knows no budget, no runtime and no machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgespec.memory.budget import MemoryRow
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.settings.config import USUAL_DRAFT_MAX

BATCH_SHARE = 0.05
"""Largest share of the budget for the buffers of a batch: a larger batch reads a prompt in fewer
passes and leaves less memory for weights."""
TREE_SIZES = (1 + 96, 1 + 64, 1 + USUAL_DRAFT_MAX, 1 + 32, 1 + 16)
"""Tree sizes that a plan chooses from, the root included, largest first."""
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

    @property
    def kept_bytes(self) -> int:
        """Bytes that paged weights never have."""
        return sum(row.nbytes for row in (*self.rows, *self.paged) if not row.is_lent)


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
    cell_bytes: int = 0
    """Bytes for a token of the context that texts share; 0 if they do not."""
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


def affordable(batch_bytes: Sequence[int], budget_bytes: int) -> int:
    """Index of the first batch within BATCH_SHARE of the budget, otherwise of the last one.

    Batches are sorted by size, largest first.
    """
    within = (i for i, nbytes in enumerate(batch_bytes) if nbytes <= BATCH_SHARE * budget_bytes)
    return next(within, len(batch_bytes) - 1)
