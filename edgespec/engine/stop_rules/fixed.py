"""Trees of a fixed depth, and as many nodes as there may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.config import FallbackName


@dataclass(frozen=True, slots=True)
class FixedLength(StopRule):
    """Verify when the draft's part of a branch has `length` tokens, drafted now or beside the last
    pass: what was guessed without a model lengthens a branch for nothing."""

    name: ClassVar[str] = FallbackName.FIXED

    length: int = 8

    def fires(self, so_far: RoundSoFar) -> bool:
        tree = so_far.tree
        n_drafted = [0]  # parents stand before their children
        for node in range(1, len(tree)):
            is_drafted = tree.source[node] not in so_far.free_sources
            n_drafted.append(n_drafted[int(tree.parent[node])] + is_drafted)
        return max(n_drafted) >= self.length


@dataclass(frozen=True, slots=True)
class FullTree(StopRule):
    """Verify when no growth within the limits is of use: every pass gets as many nodes as it may.

    What a tree of a given size brings is measured with it, for it heeds no clock.
    """

    name: ClassVar[str] = FallbackName.FULL

    def fires(self, so_far: RoundSoFar) -> bool:
        return False
