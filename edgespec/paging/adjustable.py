"""Weights whose division between pins and ring may change while their model is loaded.

Knows when a step is taken, but no segments; runtimes take the steps.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from edgespec.ports.adjusting import WeightShares


class AdjustableWeights(ABC):
    """Base of paged weights; implements `AdjustsWeights`."""

    def __init__(self, shares: WeightShares) -> None:
        self._wanted = shares
        self._present: WeightShares | None = shares
        """None after a step that failed."""
        self._applied = threading.Event()
        self._changing = threading.Lock()

    def divide(self, shares: WeightShares) -> threading.Event:
        with self._changing:
            self._wanted, self._applied = shares, threading.Event()
            return self._applied

    def settle(self) -> None:
        with self._changing:
            wanted, applied = self._wanted, self._applied
        if wanted != self._present:
            self._present = None
            self._present = self._approach(wanted)
        applied.set()

    @abstractmethod
    def _approach(self, wanted: WeightShares) -> WeightShares:
        """Let go what is pinned and not wanted, and pin some of what is missing; returns the
        division from now on. Called between passes; may be called again after it raised."""
