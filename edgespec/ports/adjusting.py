"""Port of models whose memory for weights may change while they are loaded."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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


class AdjustsWeights(Protocol):
    """Weights that are pinned, streamed and let go while a model is in use."""

    def divide(self, shares: WeightShares) -> threading.Event:
        """Divide the memory otherwise, from the next pass or `settle` on; from any thread.

        The event tells that the memory is at most that of `shares`. What is missing is pinned in
        portions, before the passes that follow.
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
