"""Sizes of a mixture's experts, their room in memory, and the bytes that passes will read of them.

Pure arithmetic on sizes, before anything was measured; `budget` divides the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgespec import theory


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """A mixture's experts as far as planning sees them. Room is in whole blocks of files."""

    n_layers: int
    """Layers with experts."""
    n_experts: int
    """In each of them."""
    n_used: int
    """Experts that a token chooses in each layer."""
    nbytes: int
    """Bytes of weights in all experts."""
    room_bytes: int
    """For all of them."""
    layer_bytes: int
    """Room for all of the largest layer: with less, those that a batch chose come in rounds."""
    least_bytes: int
    """Room for what one token chooses in one layer."""

    @property
    def used_share(self) -> float:
        """Share of a layer's experts that one token uses."""
        return self.n_used / self.n_experts

    @property
    def token_bytes(self) -> float:
        """Bytes of the experts that one token uses."""
        return self.nbytes * self.n_used / self.n_experts

    def chosen(self, n_nodes: int) -> float:
        """Experts of a layer that so many neighbouring tokens will probably choose together."""
        return self.n_experts * theory.chosen_share(self.used_share, float(n_nodes))

    def expected_bytes(self, cache_bytes: int, n_nodes: int = 1) -> float:
        """Bytes that a pass will probably read with `cache_bytes` of room for experts."""
        return self.missing_bytes(cache_bytes) * self.chosen(n_nodes) / self.n_experts

    def missing_bytes(self, cache_bytes: int) -> float:
        """Bytes that a pass which chose all experts would read with so much room for them.

        A cache of the share s of all experts has about s^(2/3) of those that a token chooses
        (measured on that mixture: 18, 32, 52, 67 and 89 % for 12, 20, 36, 50 and 75 %).
        """
        missing = 1 - math.pow(min(1.0, cache_bytes / self.room_bytes), 2 / 3)
        return self.nbytes * missing


def room_for_experts(experts: ExpertSizes, dense_bytes: int, least_ring: int, room: int) -> int:
    """Bytes for experts out of the room for weights, beside the dense weights.

    Every pass needs all dense weights and few of the experts, so dense weights come first; but a
    batch of a prompt should find room for all experts of a layer, if that is not most of the room.
    """
    wanted = max(experts.least_bytes, min(experts.layer_bytes, room // 2))
    if dense_bytes + wanted <= room:
        return min(experts.room_bytes, room - dense_bytes)
    return max(experts.least_bytes, min(wanted, room - least_ring))
