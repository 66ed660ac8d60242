"""The plainest eviction of experts, with which the cache and its default policy are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.paging.eviction import MayEvict


class LeastRecent:
    """Evicts the least recently used expert."""

    def __init__(self, n_experts: Sequence[int]) -> None:
        self._order: dict[tuple[int, int], None] = {}

    def add(self, layer: int, expert: int) -> None:
        self._order[layer, expert] = None

    def remove(self, layer: int, expert: int) -> None:
        del self._order[layer, expert]

    def use(self, layer: int, choices: np.ndarray) -> None:
        for expert in np.unique(choices).tolist():
            if (layer, expert) in self._order:
                del self._order[layer, expert]
                self._order[layer, expert] = None

    def victim(self, may_evict: MayEvict) -> tuple[int, int] | None:
        return next((unit for unit in self._order if may_evict(*unit)), None)
