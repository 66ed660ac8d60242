"""Port of models whose memory for weights may change while they are loaded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class WeightShares:
    """Division of the memory for weights."""

    cut: int
    """Index of the segmentation, coarsest first."""
    pinned: frozenset[int]
    """Indices of the pinned segments."""
    ring_bytes: int
    """Size of the ring for the others."""
    expert_bytes: int = 0
    """Size of the cache of experts."""


class ContextSize(NamedTuple):
    """Memory of a context's keys and values that is taken as its cells are filled."""

    n_cells: int = 0
    """0 if all of it is taken at once."""
    cell_bytes: int = 0
    rest_bytes: int = 0
    """Bytes that are taken before the first cell is filled, at most."""


class UnfilledShares(NamedTuple):
    """A division of the memory that holds while the context has at most `n_cells` in use."""

    n_cells: int
    shares: WeightShares


class AdjustsWeights(Protocol):
    """Weights that are pinned, streamed and let go while a model is in use."""

    context: ContextSize

    def divide(
        self, shares: WeightShares, unfilled: Sequence[UnfilledShares] = ()
    ) -> threading.Event:
        """Divide the memory otherwise, from the next pass or `settle` on; from any thread.

        Instead of `shares`, the first of `unfilled`, by ascending numbers of cells, holds that has
        room for the context's cells in use. The event tells that the memory is at most that of the
        division. What is missing is pinned in portions, before the passes that follow.
        """

    def settle(self) -> None:
        """Take a step towards the division that was asked for; called between passes.

        Raises WeightReadError.
        """


@runtime_checkable
class IsAdjustable(Protocol):
    """A model that is able to have `AdjustsWeights`."""

    @property
    def adjusting(self) -> AdjustsWeights | None:
        """None if all weights are resident."""
