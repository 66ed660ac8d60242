"""Base class of stop rules, and the part of a round that they see.

A stop rule is a frozen value: it is asked before every draft step, and `observe` returns its
successor after every round. It sees the tree and what was accepted, but calls no model and reads no
clock. By default there is none, and the round planner decides (see `decision`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from edgespec.engine.outcome import RoundOutcome
from edgespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class RoundSoFar:
    """The state of a round before its pass."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Nodes that can grow, as their successors were not drafted yet."""
    draft_steps: int = 0
    draft_s: float = 0.0
    free_sources: Collection[str] = ()
    """Sources whose guesses cost almost nothing."""
    n_ends: int = 1
    """Number of nodes that grow in one step: of each text one that is nearly as probable as the
    best."""
    step_depth: int = 1
    """Number of consecutive nodes that a step adds."""

    @property
    def best_open(self) -> int | None:
        """The most probable node that can grow; None if there is none."""
        if not self.open_nodes:
            return None
        nodes = list(self.open_nodes)
        return nodes[int(self.tree.cumulative[nodes].argmax())]


class StopRule(ABC):
    """Decides when to verify. To add one, write a file and register it in `STOP_RULES`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, so_far: RoundSoFar) -> bool:
        """True if the target should verify now instead of another draft step."""

    def observe(self, outcome: RoundOutcome) -> Self:
        """The rule for the next round."""
        return self
