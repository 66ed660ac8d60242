"""Protocol of stop rules, and what they see of a round.

Values that are asked before every draft step and answer every round with their successor. They
see the tree and what was accepted; they call no model and read no clock. Without one of them the
round planner decides (see `decision`).
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
    """A round before its pass."""

    tree: TokenTree
    open_nodes: Sequence[int]
    """Ends that can grow: nodes whose successors the draft has not been asked for."""
    draft_steps: int = 0
    draft_s: float = 0.0
    free_sources: Collection[str] = ()
    """Sources whose nodes cost next to nothing to guess."""
    n_ends: int = 1
    """Ends that grow in one step: one of each text that is nearly as probable as the best."""
    step_depth: int = 1
    """Nodes in a row that one step adds."""

    @property
    def best_open(self) -> int | None:
        """The most probable node that can grow; None if none can."""
        if not self.open_nodes:
            return None
        nodes = list(self.open_nodes)
        return nodes[int(self.tree.cumulative[nodes].argmax())]


class StopRule(ABC):
    """Decides when to verify. To add one, write a file and register it in `STOP_RULES`."""

    name: ClassVar[str]

    @abstractmethod
    def fires(self, so_far: RoundSoFar) -> bool:
        """True if the target is to verify now, before another draft step."""

    def observe(self, outcome: RoundOutcome) -> Self:
        """The rule for the next round."""
        return self
