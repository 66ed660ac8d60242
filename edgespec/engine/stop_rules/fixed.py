"""Fixed rules: branches of fixed length, or trees of maximal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.stop_rules.rule import RoundSoFar, StopRule
from edgespec.settings.rule_names import FallbackName


@dataclass(frozen=True, slots=True)
class FixedLength(StopRule):
    """Verify when a branch has `length` tokens of the draft model, including those drafted during
    the last pass. Guesses without a model cost nothing and do not count."""

    name: ClassVar[str] = FallbackName.FIXED

    length: int = 8

    def fires(self, so_far: RoundSoFar) -> bool:
        tree = so_far.tree
        n_drafted = [0]  # by node; parents precede their children
        for node in range(1, len(tree)):
            is_drafted = tree.source[node] not in so_far.free_sources
            n_drafted.append(n_drafted[int(tree.parent[node])] + is_drafted)
        return max(n_drafted) >= self.length


@dataclass(frozen=True, slots=True)
class FullTree(StopRule):
    """Verify when the tree has its maximal size.

    It serves to measure the yield of trees of a given size, as it does not depend on time.
    """

    name: ClassVar[str] = FallbackName.FULL

    def fires(self, so_far: RoundSoFar) -> bool:
        return False
