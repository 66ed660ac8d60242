"""Stalls of passes for a mixture's experts, learnt from measured passes.

It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.state_store import MAX_S, Numbers, within
from edgespec.values import PassReport

SHARINGS: Final = np.linspace(0.0, 1.5, 31)
"""Candidate values of `ExpertStalls.sharing`."""


def _none() -> NDArray[np.float64]:
    return np.zeros((0, 3))


@dataclass(slots=True, eq=False)
class ExpertStalls:
    """Seconds in which a pass waits for experts, by its rows: proportional to the share of all
    experts that the rows choose.

    For fine-grained experts, the stall of the first row gives the cost of one row, and that of the
    others the similarity of the choices of adjacent rows.
    """

    max_waits: ClassVar[int] = 16
    """Number of passes over several rows from which `sharing` is fitted."""
    prior_waits: ClassVar[int] = 4
    """Weight of the prior `sharing`, as a number of passes over two rows."""
    fine_share: ClassVar[float] = 0.125
    """Experts are fine-grained if one row uses at most this share of them: several rows may read
    many times the experts of one."""
    first_row_share: ClassVar[float] = 0.05
    """Weight of the newest pass in `all_experts_s`, after many passes."""

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses; 1 for a dense model."""
    all_experts_s: float = 0.0
    """Estimated stall of a pass whose rows choose all experts."""
    n_first_rows: int = 0
    """Number of first-row stalls in this estimate."""
    sharing: float = theory.USUAL_SHARING
    """Exponent: n adjacent rows choose as many distinct experts as n^sharing independent rows."""
    waits: NDArray[np.float64] = field(default_factory=_none)
    """Latest passes over several rows: rows, seconds for the first row and for all, [passes, 3]."""

    def seconds(self, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        """Stalls of passes over these numbers of rows."""
        return self.all_experts_s * theory.chosen_share(self.used_share, n_rows, self.sharing)

    def second(self, n_rows: int) -> float:
        return float(self.seconds(np.array([n_rows]))[0])

    @property
    def max_rows(self) -> float:
        """Most rows of a pass; with fine-grained experts, twice as many as were measured."""
        if self.used_share > self.fine_share:
            return math.inf
        return float(2 * max(1.0, self.waits[:, 0].max(initial=1.0)))

    def see_all(self, rows: float, choice_s: float) -> None:
        """Learn from a pass of which only the stall of all rows together is known."""
        if self.used_share < 1:
            found_s = choice_s / float(theory.chosen_share(self.used_share, rows, self.sharing))
            kept = 0.9 if self.all_experts_s else 0.0
            self.all_experts_s = kept * self.all_experts_s + (1 - kept) * found_s

    def see_pass(self, rows: int, report: PassReport) -> None:
        """Learn from the stalls of a pass."""
        first_s, all_s = report.first_row_stall_s, report.choice_stall_s
        if rows == 1:
            first_s = all_s
        if first_s is None or self.used_share > self.fine_share:
            self.see_all(rows, all_s)
            return
        self.n_first_rows += 1
        weight = max(self.first_row_share, 1 / self.n_first_rows)
        self.all_experts_s += weight * (first_s / self.used_share - self.all_experts_s)
        if rows == 1:
            return
        if not len(self.waits):
            usual_s = self.used_share * self.all_experts_s
            usual = (2, usual_s, usual_s * float(self._ratio(np.array(2), self.sharing)))
            self.waits = np.tile(usual, (self.prior_waits, 1))
        self.waits = np.vstack([self.waits, (rows, first_s, all_s)])[-self.max_waits :]
        # the exponent with which the stalls for first rows predict the total of all stalls
        n_rows, firsts_s, alls_s = self.waits.T
        expected_s = (firsts_s * self._ratio(n_rows, SHARINGS[:, None])).sum(axis=1)
        self.sharing = float(np.interp(alls_s.sum(), expected_s, SHARINGS))

    def _ratio(self, n_rows: NDArray[Any], sharing: Any) -> NDArray[np.float64]:
        """Distinct experts that `n_rows` choose, relative to one row."""
        return theory.chosen_share(self.used_share, n_rows, sharing) / self.used_share

    def state(self) -> dict[str, float]:
        """State for `restore`."""
        return {"all_experts_s": self.all_experts_s, "sharing": self.sharing}

    def restore(self, numbers: Numbers) -> None:
        """Take the state of an earlier run where this one knows nothing yet."""
        self.all_experts_s = self.all_experts_s or within(numbers, "all_experts_s", MAX_S)
        if not len(self.waits):
            self.sharing = within(numbers, "sharing", 1.5, self.sharing)
