"""Seconds of a pass of the target by its number of rows: a curve learnt from measured passes.

A frozen value. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.remembering import Numbers
from edgespec.values import PassReport

LONGEST_S, MOST_ROWS = 1e4, 1e4
"""Remembered values above these are ignored."""
SHORTEST_S = 1e-7
"""Computing that takes less counts as this."""


class Knot(NamedTuple):
    """Passes of about one number of rows."""

    rows: float
    seconds: float
    """Computing alone, neither waiting for reads nor experts, where the slowness is 1."""
    variance: float
    """Variance of the logarithm of `seconds`."""


class Wait(NamedTuple):
    """Seconds that a pass waited for experts."""

    rows: float
    first_s: float
    """Part of them for what its first row chose."""
    all_s: float


SHARINGS: Final = np.linspace(0.0, 1.5, 31)
"""Powers of the number of rows that are looked at."""


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Seconds of a pass by its rows: reading or computing, whichever takes longer.

    Computing is a curve through one knot an octave of rows (1, 2, 3-5, 6-11, ...), straight between
    knots and never falling, so that one row, several rows and a tile may cost what they like. The
    pass that read the prompt is the first knot: 35 rows at once tell what a row costs.

    Knots keep their ratios where the machine becomes slower or faster: a pass that takes longer or
    shorter than expected tells partly of its number of rows, partly of the machine, each as much as
    it was uncertain (a Kalman filter's gain). The first pass rescales what another run learnt.

    Of a mixture, rows choose experts that have to be read for them, which nothing hides. That time
    follows the share of all experts that so many rows choose. Of fine-grained experts the first row
    of each pass tells what one costs, the others how alike rows choose.
    """

    one_pass: ClassVar[float] = 0.04
    """Variance of a knot after one pass."""
    slow_pass: ClassVar[float] = 0.1
    fast_pass: ClassVar[float] = 0.01
    """Variances of passes slower and faster than expected: other work makes a pass longer, nothing
    makes it shorter."""
    least: ClassVar[float] = 0.003
    """A knot's variance after many passes: the machine is not the same all the time."""
    sure: ClassVar[float] = 0.0066
    """Variance after three passes that were not slower than expected."""
    ageing: ClassVar[float] = 0.002
    """Growth of a knot's variance with a pass of another size."""
    drift: ClassVar[float] = 0.004
    """Growth of the slowness's variance with a pass."""
    forgotten: ClassVar[float] = 0.1
    """A knot of more variance is dropped, so that its size may be tried again; outer ones stay."""
    guessed_slope: ClassVar[float] = 0.1
    """A further row's share of a pass over one, while one row is all that was seen."""
    usual_growth: ClassVar[float] = 0.75
    """Power of the number of rows with which a pass grows, below the fewest rows that were seen."""
    largest_rise: ClassVar[float] = 1.3
    """A pass that takes longer than so many times the mean counts as one that took so long."""
    idle_share: ClassVar[float] = 0.05
    """A pass that waited for less of its time shows only an upper bound of what reads take."""
    latest_waits: ClassVar[int] = 16
    """Passes over several rows that tell how alike rows choose experts."""
    waits_before: ClassVar[int] = 4
    """Passes over two rows as which the sharing known before counts."""
    fine_share: ClassVar[float] = 0.125
    """Share of the experts that a row uses, up to which they are fine-grained."""
    first_row_share: ClassVar[float] = 0.05
    """Weight of a pass in what the experts of one row cost, after many passes."""
    least_growth: ClassVar[float] = 1 / 16
    """Share of a text by which its prompt's passes must be over more or less of it than those
    before, or attention is not taken to be the reason for what they took."""
    short_text: ClassVar[int] = 512
    """Tokens more or less that make no difference to a pass."""

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses."""
    all_experts_s: float = 0.0
    """Seconds that a pass would wait for experts if its rows chose all of them."""
    n_first_rows: int = 0
    """Passes whose first rows told that."""
    sharing: float = theory.USUAL_SHARING
    """Power of the number of rows with which the experts that they choose grow."""
    waits: tuple[Wait, ...] = ()
    """The latest passes over several rows."""
    read_s: float = 0.0
    """Seconds that reading what every pass needs takes."""
    contention: float = 1.0
    """Computing takes 1 + contention times as long while a draft works beside it; 1 is a fair half
    of the same cores."""
    knots: tuple[Knot, ...] = ()
    """Ascending by rows."""
    slowness: float = 0.0
    """Times as long as the knots say that computing takes now; 0 before this run's first pass."""
    doubt: float = 0.0
    """Variance of the logarithm of `slowness`."""
    n_context: int = 0
    """Tokens of the text that passes are over."""

    @property
    def times(self) -> float:
        """Times as long as what was learnt says that computing takes now."""
        return self.slowness or 1.0

    @property
    def is_sure(self) -> bool:
        """True if what a pass over one row takes rests on more than the first passes of a run,
        which may be slow: on three, or on two that rescaled what another run learnt."""
        if self.read_s > self._compute_one_s(1):
            return True
        return (
            bool(self.knots) and self.knots[0].variance < self.sure and self.doubt < self.one_pass
        )

    @property
    def is_known(self) -> bool:
        return bool(self.knots) or self.read_s > 0

    def with_prompt(self, report: PassReport, n_context: int | None = None) -> PassCurve:
        """The curve after a prompt was read to the end of a text of `n_context` tokens; None where
        passes are over several texts."""
        passes = max(1, report.passes)
        rows, wall_s = report.n_tokens / passes, report.wall_s / passes
        choice_s, stall_s = report.choice_stall_s / passes, report.stall_s / passes
        read_s = self._read_s_after(wall_s - choice_s, stall_s - choice_s, report.read_s / passes)
        n_before, n_now = self.n_context, self.n_context if n_context is None else n_context
        after = replace(self, read_s=read_s, n_context=n_now)
        if rows < 1:
            return after
        after = after._with_all_experts(rows, choice_s)
        grown = n_now - report.n_tokens / 2 - n_before
        is_telling = abs(grown) > max(self.short_text, self.least_growth * n_now)
        if n_context is None or not self.slowness or not is_telling:
            return after._with_knot(rows, wall_s - stall_s)
        return after._with_attention(rows, wall_s - stall_s, (n_now - n_before) / grown)

    def with_pass(self, n_rows: int, report: PassReport, drafted_beside: bool) -> PassCurve:
        """The curve after a pass over so many rows. One beside which a draft worked shows what that
        costs, and nothing of what computing takes alone."""
        idle_s = report.stall_s - report.choice_stall_s
        compute_s = max(0.0, report.wall_s - report.stall_s)
        rest_s = report.wall_s - report.choice_stall_s
        after = replace(self, read_s=self._read_s_after(rest_s, idle_s, report.read_s))
        if drafted_beside:
            return after._with_contention(n_rows, rest_s)
        return after._with_experts(n_rows, report)._with_knot(n_rows, compute_s)

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
        return self.times * np.asarray(np.interp(n_rows, rows, seconds) + beyond)

    def _compute_one_s(self, n_rows: float) -> float:
        return float(self.compute_s(np.array([n_rows]))[0])

    def seconds(self, n_rows: NDArray[Any], beside: bool = False) -> NDArray[np.float64]:
        """Seconds of passes over these numbers of rows; `beside`, while a draft works."""
        compute_s = self.compute_s(n_rows) * (1 + self.contention * beside)
        seconds = np.maximum(compute_s, self.read_s)
        return seconds if self.used_share == 1 else seconds + self.experts_s(n_rows)

    def experts_s(self, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds in which passes over these numbers of rows wait for experts."""
        return self.all_experts_s * theory.chosen_share(self.used_share, n_rows, self.sharing)

    def expert_s(self, n_rows: int) -> float:
        return float(self.experts_s(np.array([n_rows]))[0])

    @property
    def has_fine_experts(self) -> bool:
        """True if a row uses so few of many experts that rows may cost many times one row."""
        return self.used_share <= self.fine_share

    @property
    def most_rows(self) -> float:
        """Rows of a pass that may be tried: of fine-grained experts twice as many as were seen."""
        if not self.has_fine_experts:
            return MOST_ROWS
        return 2 * max([1.0, *(wait.rows for wait in self.waits)])

    def second(self, n_rows: int, beside: bool = False) -> float:
        return float(self.seconds(np.array([n_rows]), beside)[0])

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        numbers = {"all_experts_s": self.all_experts_s, "contention": self.contention}
        if self.has_fine_experts:
            numbers["sharing"] = self.sharing
        for knot in self.knots:
            numbers[f"rows {_octave(knot.rows)}"] = knot.rows
            numbers[f"seconds {_octave(knot.rows)}"] = knot.seconds
            numbers[f"variance {_octave(knot.rows)}"] = knot.variance
        return numbers

    def load_state_dict(self, numbers: Numbers) -> PassCurve:
        """The curve of another run, rescaled by the passes of this one. Nonsense is ignored."""
        knots = []
        for octave in range(_octave(MOST_ROWS) + 1):
            rows = within(numbers, f"rows {octave}", MOST_ROWS)
            seconds = within(numbers, f"seconds {octave}", LONGEST_S)
            variance = within(numbers, f"variance {octave}", 1.0, self.one_pass)
            if rows >= 1 and seconds > SHORTEST_S and _octave(rows) == octave:
                knots.append(Knot(rows, seconds, max(variance, self.least)))
        after = replace(
            self,
            all_experts_s=self.all_experts_s or within(numbers, "all_experts_s", LONGEST_S),
            sharing=self.sharing if self.waits else within(numbers, "sharing", 1.5, self.sharing),
            contention=within(numbers, "contention", 4.0, self.contention),
            knots=tuple(knots),
            slowness=0.0,
        )
        for knot in self.knots:
            after = after._with_knot(knot.rows, self.times * knot.seconds)
        return after

    @property
    def _points(self) -> tuple[list[float], list[float]]:
        """Rows and seconds of a curve that never falls: pools knots that contradict each other."""
        pooled: list[list[float]] = []  # seconds, weight, how many knots
        for knot in self.knots:
            pooled.append([knot.seconds, 1 / knot.variance, 1])
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

    def _with_knot(self, rows: float, seconds: float) -> PassCurve:
        seconds = max(seconds, SHORTEST_S)
        expected_s = self._compute_one_s(rows) or seconds
        if not self.slowness and self.knots:
            return replace(self, slowness=seconds / expected_s, doubt=self.one_pass)
        if not self.slowness:
            return replace(self, slowness=1.0)._with_knot(rows, seconds)
        kept, mine = [], None
        for knot in self.knots:
            if _octave(knot.rows) == _octave(rows):
                mine = knot
            elif knot in (self.knots[0], self.knots[-1]):
                kept.append(knot)
            elif knot.variance <= self.forgotten:
                kept.append(knot._replace(variance=knot.variance + self.ageing))
        if mine is None:
            if self.knots and self.knots[0].rows < rows < self.knots[-1].rows:
                seconds = min(seconds, math.sqrt(seconds * expected_s))
            mine = Knot(rows, seconds / self.slowness, self.one_pass)
            return replace(self, knots=tuple(sorted([*kept, mine])))
        surprise = min(math.log(seconds / expected_s), math.log(self.largest_rise))
        doubt = self.doubt + self.drift
        total = doubt + mine.variance + (self.slow_pass if surprise > 0 else self.fast_pass)
        own, common = mine.variance / total, doubt / total
        at = mine.rows + own * (rows - mine.rows)
        height = self._compute_one_s(at) / self.slowness * math.exp(own * surprise)
        mine = Knot(at, height, max(self.least, mine.variance * (1 - own)))
        return replace(
            self,
            knots=tuple(sorted([*kept, mine])),
            slowness=self.slowness * math.exp(common * surprise),
            doubt=doubt * (1 - common),
        )

    def _with_attention(self, rows: float, seconds: float, times: float) -> PassCurve:
        """The curve for a text of another length, whose prompt took `seconds` for so many rows, and
        whose end makes `times` as much of a difference as the prompt did.

        Attention takes as long for a row as the text is long, whatever the other rows are.
        """
        expected_s = self._compute_one_s(rows)
        row_s = times * (seconds - expected_s) / rows / self.slowness
        least = min(1.0, seconds / expected_s)
        return replace(
            self,
            knots=tuple(
                Knot(
                    knot.rows,
                    max(least * knot.seconds, knot.seconds + row_s * knot.rows, SHORTEST_S),
                    max(knot.variance, self.one_pass),
                )
                for knot in self.knots
            ),
        )

    def _with_experts(self, rows: int, report: PassReport) -> PassCurve:
        if self.used_share == 1:
            return self
        first_s, all_s = report.first_row_stall_s, report.choice_stall_s
        if rows == 1:
            first_s = all_s
        if first_s is None or not self.has_fine_experts:
            return self._with_all_experts(rows, all_s)
        n_first_rows = self.n_first_rows + 1
        weight = max(self.first_row_share, 1 / n_first_rows)
        found_s = (1 - weight) * self.all_experts_s + weight * first_s / self.used_share
        after = replace(self, all_experts_s=found_s, n_first_rows=n_first_rows)
        if rows == 1:
            return after
        usual_s = self.used_share * found_s
        usual = Wait(2, usual_s, usual_s * float(self._times(np.array(2), self.sharing)))
        before = self.waits or (usual,) * self.waits_before
        waits = (*before, Wait(rows, first_s, all_s))[-self.latest_waits :]
        return replace(after, waits=waits, sharing=self._explaining(waits))

    def _explaining(self, waits: Sequence[Wait]) -> float:
        """The sharing that explains what passes waited for all rows by what they waited for their
        first ones."""
        rows, first_s, all_s = np.array(waits).T
        expected_s = (first_s * self._times(rows, SHARINGS[:, None])).sum(axis=1)
        return float(np.interp(all_s.sum(), expected_s, SHARINGS))

    def _times(self, n_rows: NDArray[Any], sharing: Any) -> NDArray[np.float64]:
        """Times as many experts as one row that so many rows choose."""
        return theory.chosen_share(self.used_share, n_rows, sharing) / self.used_share

    def _with_all_experts(self, rows: float, choice_s: float) -> PassCurve:
        """The curve after a pass of which only what all of its rows waited counts."""
        if self.used_share == 1:
            return self
        found_s = choice_s / float(theory.chosen_share(self.used_share, rows, self.sharing))
        kept = 0.9 if self.all_experts_s else 0.0
        return replace(self, all_experts_s=kept * self.all_experts_s + (1 - kept) * found_s)

    def _with_contention(self, n_rows: int, wall_s: float) -> PassCurve:
        compute_s = self._compute_one_s(n_rows)
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
