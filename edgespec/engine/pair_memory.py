"""What one engine takes over from earlier runs of its pair, and leaves to later ones.

Costs are kept by cache key, what was learnt of the draft's guesses is not.
"""

from __future__ import annotations

from edgespec.engine.cost_key import CostKey
from edgespec.engine.decision import RoundPlanner
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.remembering import Learnt, Memory, renewed
from edgespec.values import PassReport


class PairMemory:
    """Without a `memory` nothing is taken over and nothing is left."""

    def __init__(self, memory: Memory | None, key: CostKey) -> None:
        self._memory = memory
        self._key = key
        self._learnt: Learnt = {}
        self._is_new = True
        """Whether no round has shown yet what rounds cost."""

    def recall(self, grower: TreeGrower, planner: RoundPlanner) -> RoundPlanner:
        """The planner as another run left it, where its key is known; the grower learns, too."""
        if self._memory is None:
            return planner
        self._learnt = self._memory.recall()
        grower.recall(self._learnt)
        return self._recalled(planner)

    def see_prompt(self, report: PassReport, planner: RoundPlanner) -> RoundPlanner:
        """The planner as another run left it, once a prompt has shown how fast storage is."""
        self._see_reads(report.bytes_read, report.read_s)
        return self._recalled(planner)

    def see_round(self, bytes_read: int, read_s: float) -> None:
        """A round has shown what rounds cost: what was remembered is of no more use."""
        self._is_new = False
        self._see_reads(bytes_read, read_s)

    def keep(self, grower: TreeGrower, planner: RoundPlanner) -> None:
        """Leave what was learnt to the next run."""
        if self._memory is None:
            return
        learnt = grower.learnt()
        if self._key.is_known:
            learnt = renewed(learnt, {self._place: planner.state_dict()})
        self._memory.keep(learnt)

    def _see_reads(self, bytes_read: int, read_s: float) -> None:
        self._key = self._key.with_reads(bytes_read, read_s)

    def _recalled(self, planner: RoundPlanner) -> RoundPlanner:
        if not self._key.is_known or not self._is_new:
            return planner
        return planner.load_state_dict(self._learnt.get(self._place, {}))

    @property
    def _place(self) -> str:
        return f"rounds@{self._key.name}"
