"""Seconds of a pass of the target by its number of rows: a curve learnt from measured passes.

A frozen value. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.remembering import Numbers
from edgespec.values import PassReport

LONGEST_S, MOST_ROWS = 1e4, 1e4
"""Remembered values above these are ignored."""


class Knot(NamedTuple):
    """Passes of about one number of rows: fading means."""

    rows: float
    seconds: float
    """Computing alone: neither waiting for reads nor experts."""
    weight: float


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Seconds of a pass by its rows: reading or computing, whichever takes longer.

    Computing is a curve through one knot an octave of rows (1, 2, 3-5, 6-11, ...), straight between
    knots and never falling, so that one row, several rows and a tile may cost what they like. The
    pass that read the prompt is the first knot: 35 rows at once tell what a row costs.

    Of a mixture, rows choose experts that have to be read for them, which nothing hides. Rows
    choose alike: that time follows the share of all experts that so many rows choose.
    """

    fade: ClassVar[float] = 0.95
    """Kept of a knot's weight when a pass of another size is seen."""
    forgotten: ClassVar[float] = 0.1
    """A knot of less weight is dropped, so that its size may be tried again; outer ones stay."""
    longest_mean: ClassVar[float] = 6.0
    """Passes that a knot's means reach back."""
    guessed_slope: ClassVar[float] = 0.1
    """A further row's share of a pass over one, while one row is all that was seen."""
    usual_growth: ClassVar[float] = 0.75
    """Power of the number of rows with which a pass grows, below the fewest rows that were seen."""
    largest_rise: ClassVar[float] = 1.3
    """A pass that takes longer than so many times the mean counts as one that took so long."""
    idle_share: ClassVar[float] = 0.05
    """A pass that waited for less of its time shows only an upper bound of what reads take."""
    shortest_prompt: ClassVar[int] = 8
    """Fewer tokens say little of what one row of many costs."""

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses."""
    all_experts_s: float = 0.0
    """Seconds that a pass would wait for experts if its rows chose all of them."""
    read_s: float = 0.0
    """Seconds that reading what every pass needs takes."""
    contention: float = 1.0
    """Computing takes 1 + contention times as long while a draft works beside it; 1 is a fair half
    of the same cores."""
    knots: tuple[Knot, ...] = ()
    """Ascending by rows."""

    @property
    def is_known(self) -> bool:
        return bool(self.knots) or self.read_s > 0

    def with_prompt(self, report: PassReport) -> PassCurve:
        """The curve after a prompt was read."""
        passes = max(1, report.passes)
        rows, wall_s = report.n_tokens / passes, report.wall_s / passes
        choice_s, stall_s = report.choice_stall_s / passes, report.stall_s / passes
        read_s = self._read_s_after(wall_s - choice_s, stall_s - choice_s, report.read_s / passes)
        after = replace(self, read_s=read_s)
        if rows < self.shortest_prompt:
            return after
        return after._with_experts(rows, choice_s)._with_knot(rows, wall_s - stall_s, 0.5)

    def with_pass(self, n_rows: int, report: PassReport, drafted_beside: bool) -> PassCurve:
        """The curve after a pass over so many rows. One beside which a draft worked shows what that
        costs, and nothing of what computing takes alone."""
        idle_s = report.stall_s - report.choice_stall_s
        compute_s = max(0.0, report.wall_s - report.stall_s)
        rest_s = report.wall_s - report.choice_stall_s
        after = replace(self, read_s=self._read_s_after(rest_s, idle_s, report.read_s))
        if drafted_beside:
            return after._with_contention(n_rows, rest_s)
        return after._with_experts(n_rows, report.choice_stall_s)._with_knot(n_rows, compute_s)

    def compute_s(self, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds of computing for these numbers of rows, ascending."""
        if not self.knots:
            return np.zeros(len(n_rows))
        rows, seconds = self._points
        slope = (
            (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
            if len(rows) > 1
            else self.guessed_slope * seconds[-1]
        )
        beyond = slope * np.maximum(0.0, n_rows - rows[-1])
        return np.asarray(np.interp(n_rows, rows, seconds) + beyond, np.float64)

    def seconds(self, n_rows: NDArray[Any], beside: bool = False) -> NDArray[np.float64]:
        """Seconds of passes over these numbers of rows; `beside`, while a draft works."""
        compute_s = self.compute_s(n_rows) * (1 + self.contention * beside)
        seconds = np.maximum(compute_s, self.read_s)
        if self.used_share == 1:
            return seconds
        return seconds + self.all_experts_s * theory.chosen_share(self.used_share, n_rows)

    def second(self, n_rows: int, beside: bool = False) -> float:
        return float(self.seconds(np.array([n_rows]), beside)[0])

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        numbers = {"all_experts_s": self.all_experts_s, "contention": self.contention}
        for knot in self.knots:
            numbers[f"rows {_octave(knot.rows)}"] = knot.rows
            numbers[f"seconds {_octave(knot.rows)}"] = knot.seconds
        return numbers

    def load_state_dict(self, numbers: Numbers) -> PassCurve:
        """The curve of another run, each knot to count as one pass. Nonsense is ignored."""
        after = replace(
            self,
            all_experts_s=self.all_experts_s or within(numbers, "all_experts_s", LONGEST_S),
            contention=within(numbers, "contention", 4.0, self.contention),
        )
        known = {_octave(knot.rows) for knot in self.knots}
        for octave in range(_octave(MOST_ROWS) + 1):
            rows = within(numbers, f"rows {octave}", MOST_ROWS)
            seconds = within(numbers, f"seconds {octave}", LONGEST_S)
            if rows >= 1 and seconds > 0 and _octave(rows) == octave and octave not in known:
                after = after._with_knot(rows, seconds)
        return after

    @property
    def _points(self) -> tuple[list[float], list[float]]:
        """Rows and seconds of a curve that never falls: pools knots that contradict each other."""
        pooled: list[list[float]] = []  # seconds, weight, how many knots
        for knot in self.knots:
            pooled.append([knot.seconds, knot.weight, 1])
            while len(pooled) > 1 and pooled[-2][0] > pooled[-1][0]:
                seconds, weight, n = pooled.pop()
                below = pooled[-1]
                below[0] = (below[0] * below[1] + seconds * weight) / (below[1] + weight)
                below[1] += weight
                below[2] += n
        rows = [knot.rows for knot in self.knots]
        heights = [seconds for seconds, _, n in pooled for _ in range(int(n))]
        if rows[0] > 1:
            fewer = [2.0**n for n in range(_octave(rows[0]) + 1) if 2**n < rows[0]]
            below = [heights[0] * (n / rows[0]) ** self.usual_growth for n in fewer]
            return [*fewer, *rows], [*below, *heights]
        return rows, heights

    def _with_knot(self, rows: float, seconds: float, weight: float = 1.0) -> PassCurve:
        octave = _octave(rows)
        kept, mine = [], Knot(rows, seconds, 0.0)
        for knot in self.knots:
            if _octave(knot.rows) == octave:
                mine = knot
            elif knot.weight >= self.forgotten or knot in (self.knots[0], self.knots[-1]):
                kept.append(knot._replace(weight=self.fade * knot.weight))
        if mine.weight:  # other work makes a pass longer, nothing makes it shorter
            seconds = min(seconds, self.largest_rise * mine.seconds)
        total = min(mine.weight + weight, self.longest_mean)
        share = weight / total
        mean = Knot(
            mine.rows + share * (rows - mine.rows),
            mine.seconds + share * (seconds - mine.seconds),
            total,
        )
        return replace(self, knots=tuple(sorted([*kept, mean])))

    def _with_experts(self, rows: float, choice_s: float) -> PassCurve:
        if self.used_share == 1:
            return self
        found_s = choice_s / float(theory.chosen_share(self.used_share, rows))
        kept = 0.9 if self.all_experts_s else 0.0
        return replace(self, all_experts_s=kept * self.all_experts_s + (1 - kept) * found_s)

    def _with_contention(self, n_rows: int, wall_s: float) -> PassCurve:
        compute_s = float(self.compute_s(np.array([n_rows]))[0])
        if compute_s <= 0:
            return self
        found = max(0.0, wall_s / compute_s - 1)
        if wall_s < 1.05 * self.read_s:
            # Reads hid the rest: this is an upper bound.
            found = min(found, self.contention)
        return replace(self, contention=0.7 * self.contention + 0.3 * min(found, 4.0))

    def _read_s_after(self, wall_s: float, idle_s: float, measured_s: float) -> float:
        """Seconds of reading, measured by the store, else those of a pass that waited."""
        waited = idle_s > self.idle_share * wall_s
        if measured_s > 0:
            before_s = self.read_s or measured_s
            after_s = 0.7 * before_s + 0.3 * measured_s
            return after_s if waited else min(before_s, after_s)
        return wall_s if idle_s > 0.25 * wall_s else min(self.read_s, wall_s)


def within(numbers: Numbers, name: str, most: float, default: float = 0.0) -> float:
    """A remembered number, kept between 0 and `most`."""
    return min(max(numbers.get(name, default), 0.0), most)


def _octave(rows: float) -> int:
    return round(math.log2(max(rows, 1.0)))
