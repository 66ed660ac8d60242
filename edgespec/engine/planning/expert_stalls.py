"""Stalls of passes for a mixture's experts, learnt from measured passes.

It reads no clock and calls no model.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.state_store import MAX_S, kept
from edgespec.values import PassReport

SHARINGS: Final = np.linspace(0.0, 1.5, 31)
"""Candidate values of `ExpertStalls.sharing`."""


@dataclass(slots=True, eq=False)
class ExpertStalls:
    """Seconds in which a pass waits for experts, by its rows: proportional to the share of all
    experts that the rows choose.

    For fine-grained experts, the stall of the first row gives the cost of one row, and that of the
    others the similarity of the choices of adjacent rows.
    """

    fine_share: ClassVar[float] = 0.125
    """Experts are fine-grained if one row uses at most this share of them: several rows may read
    many times the experts of one."""
    first_row_share: ClassVar[float] = 0.05
    """Weight of the newest pass in `all_experts_s`, after many passes."""
    rows_share: ClassVar[float] = 1 / 16
    """Weight of the newest pass over several rows in `sharing`."""
    prior_passes: ClassVar[int] = 4
    """Weight of the prior `sharing`, as a number of passes over two rows."""

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses; 1 for a dense model."""
    all_experts_s: float = kept(MAX_S)
    """Estimated stall of a pass whose rows choose all experts."""
    sharing: float = kept(1.5, theory.USUAL_SHARING)
    """Exponent: n adjacent rows choose as many distinct experts as n^sharing independent rows."""
    n_first_rows: int = 0
    """Number of first-row stalls in `all_experts_s`."""
    most_rows: int = 1
    """Most rows of a pass so far."""
    waited_s: float = 0.0
    """Fading sum of the stalls of passes over several rows."""
    expected_s: NDArray[np.float64] | float = 0.0
    """The same, as the stalls for first rows predict it with each of `SHARINGS`."""

    def seconds(self, n_rows: Any) -> Any:
        """Stalls of passes over one or several numbers of rows."""
        return self.all_experts_s * theory.chosen_share(self.used_share, n_rows, self.sharing)

    @property
    def max_rows(self) -> int:
        """Most rows of a pass; with fine-grained experts, twice as many as were measured."""
        return sys.maxsize if self.used_share > self.fine_share else 2 * self.most_rows

    def see_all(self, rows: float, choice_s: float) -> None:
        """Learn from a pass of which only the stall of all rows together is known."""
        if self.used_share < 1:
            found_s = choice_s / float(theory.chosen_share(self.used_share, rows, self.sharing))
            weight = 0.1 if self.all_experts_s else 1.0
            self.all_experts_s += weight * (found_s - self.all_experts_s)

    def see_pass(self, rows: int, report: PassReport) -> None:
        """Learn from the stalls of a pass."""
        all_s = report.choice_stall_s
        first_s = all_s if rows == 1 else report.first_row_stall_s
        if first_s is None or self.used_share > self.fine_share:
            self.see_all(rows, all_s)
            return
        self.n_first_rows += 1
        weight = max(self.first_row_share, 1 / self.n_first_rows)
        self.all_experts_s += weight * (first_s / self.used_share - self.all_experts_s)
        if rows == 1:
            return
        self.most_rows = max(self.most_rows, rows)
        before = 1 - self.rows_share
        if not np.any(self.expected_s):
            before, prior_s = 1.0, self.prior_passes * self.seconds(1)
            self.expected_s = prior_s * self._ratios(2)
            self.waited_s = float(np.interp(self.sharing, SHARINGS, self.expected_s))
        self.expected_s = before * self.expected_s + first_s * self._ratios(rows)
        self.waited_s = before * self.waited_s + all_s
        # the exponent with which the stalls for first rows predict the total of all stalls
        self.sharing = float(np.interp(self.waited_s, self.expected_s, SHARINGS))

    def _ratios(self, n_rows: int) -> NDArray[np.float64]:
        """Distinct experts that `n_rows` choose, relative to one row, with each of `SHARINGS`."""
        unused = (1 - self.used_share) ** (n_rows**SHARINGS)
        return np.asarray((1 - unused) / self.used_share)
