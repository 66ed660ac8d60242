"""Duration of a target pass as a function of its rows, learnt from measured passes.

A frozen value; it reads no clock and calls no model.
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

MAX_S, MAX_ROWS = 1e4, 1e4
"""Larger values in stored state are ignored."""
MIN_S = 1e-7
"""Shorter compute times count as this."""


class Knot(NamedTuple):
    """A point of the curve: the estimated compute time of passes with about `rows` rows."""

    rows: float
    seconds: float
    """Compute time at slowdown 1, without stalls."""
    variance: float
    """Variance of log(seconds)."""


class Wait(NamedTuple):
    """Stalls of one pass for experts."""

    rows: float
    first_s: float
    """Seconds of waiting for the experts of the first row."""
    all_s: float
    """Seconds of waiting for the experts of all rows."""


SHARINGS: Final = np.linspace(0.0, 1.5, 31)
"""Candidate values of `PassCurve.sharing`."""


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Seconds of a pass by its rows: max(reading, computing) + waiting for experts.

    Compute time is a piecewise linear, non-decreasing function with one knot per octave of rows
    (1, 2, 3-5, 6-11, ...), so that it can have steps and kinks. The pass over the prompt gives the
    first knot.

    All knots are multiplied by one slowdown, the current speed of the machine. The deviation of a
    pass from its prediction is divided between its knot and the slowdown in proportion to their
    variances (a Kalman filter). The first pass of a run rescales the knots of earlier runs.

    The stall for a mixture's experts is proportional to the share of all experts that the rows
    choose. For fine-grained experts, the stall of the first row gives the cost of one row, and that
    of the others the similarity of the choices of adjacent rows.
    """

    initial_variance: ClassVar[float] = 0.04
    """Variance of a knot after one pass."""
    slow_pass_variance: ClassVar[float] = 0.1
    """Observation variance of passes slower than expected, as other processes can cause."""
    fast_pass_variance: ClassVar[float] = 0.01
    """Observation variance of passes faster than expected."""
    min_variance: ClassVar[float] = 0.003
    """Lower bound of a knot's variance."""
    sure_variance: ClassVar[float] = 0.0066
    """Variance after three passes that were not slower than expected."""
    ageing_variance: ClassVar[float] = 0.002
    """Increase of a knot's variance per pass of another size."""
    drift_variance: ClassVar[float] = 0.004
    """Increase of the slowdown's variance per pass."""
    max_variance: ClassVar[float] = 0.1
    """Inner knots above this variance are dropped, so that their sizes are tried again."""
    guessed_slope: ClassVar[float] = 0.1
    """Assumed cost of a further row relative to one row, until several rows were measured."""
    usual_growth: ClassVar[float] = 0.75
    """Exponent of the extrapolation to fewer rows than were measured: seconds ~ rows^0.75."""
    max_rise: ClassVar[float] = 1.3
    """Upper bound of a measured time relative to the expected time; longer ones are clipped."""
    idle_share: ClassVar[float] = 0.05
    """Passes that stalled for a smaller share give only an upper bound of the read time."""
    max_waits: ClassVar[int] = 16
    """Number of passes over several rows from which `sharing` is fitted."""
    prior_waits: ClassVar[int] = 4
    """Weight of the prior `sharing`, as a number of passes over two rows."""
    fine_share: ClassVar[float] = 0.125
    """Experts are fine-grained if one row uses at most this share of them."""
    first_row_share: ClassVar[float] = 0.05
    """Weight of the newest pass in `all_experts_s`, after many passes."""
    min_growth: ClassVar[float] = 1 / 16
    """Least relative change of the context at which a change of pass time is attributed to
    attention."""
    short_text: ClassVar[int] = 512
    """Least absolute change for the same, in tokens."""

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses; 1 for a dense model."""
    all_experts_s: float = 0.0
    """Estimated stall of a pass whose rows choose all experts."""
    n_first_rows: int = 0
    """Number of first-row stalls in this estimate."""
    sharing: float = theory.USUAL_SHARING
    """Exponent: n adjacent rows choose as many distinct experts as n^sharing independent rows."""
    waits: tuple[Wait, ...] = ()
    """Stalls of the latest passes over several rows."""
    read_s: float = 0.0
    """Seconds of reading the streamed segments, once per pass."""
    contention: float = 1.0
    """Relative increase of the compute time while a draft runs; 1 is an even share of the cores."""
    knots: tuple[Knot, ...] = ()
    """Points of the curve, ascending by rows."""
    measured_slowdown: float = 0.0
    """Current compute time relative to the knots; 0 before this run's first pass."""
    slowdown_variance: float = 0.0
    """Variance of the logarithm of `measured_slowdown`."""
    n_context: int = 0
    """Tokens of context to which the knots apply."""

    @property
    def slowdown(self) -> float:
        """Current compute time relative to the learnt one; 1 before this run's first pass."""
        return self.measured_slowdown or 1.0

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable: after three passes, after two with
        the state of an earlier run, or at once if reading takes longer than computing."""
        if self.read_s > self._compute_one_s(1):
            return True
        is_precise = bool(self.knots) and self.knots[0].variance < self.sure_variance
        return is_precise and self.slowdown_variance < self.initial_variance

    @property
    def is_known(self) -> bool:
        """True if at least one pass was measured."""
        return bool(self.knots) or self.read_s > 0

    def has_size(self, n_rows: int) -> bool:
        """True if passes over about `n_rows` were measured."""
        return any(_octave(knot.rows) == _octave(n_rows) for knot in self.knots)

    def with_prompt(self, report: PassReport, n_context: int | None = None) -> PassCurve:
        """The curve after reading a prompt, at whose end the context has `n_context` tokens; None
        if passes serve several texts."""
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
        is_telling = abs(grown) > max(self.short_text, self.min_growth * n_now)
        if n_context is None or not self.measured_slowdown or not is_telling:
            return after._with_knot(rows, wall_s - stall_s)
        return after._with_attention(rows, wall_s - stall_s, (n_now - n_before) / grown)

    def with_pass(self, n_rows: int, report: PassReport, drafted_beside: bool) -> PassCurve:
        """The curve after a pass over `n_rows`. A pass beside drafting (`drafted_beside`) updates
        the contention instead of the compute time."""
        idle_s = report.stall_s - report.choice_stall_s
        compute_s = max(0.0, report.wall_s - report.stall_s)
        rest_s = report.wall_s - report.choice_stall_s
        after = replace(self, read_s=self._read_s_after(rest_s, idle_s, report.read_s))
        if drafted_beside:
            return after._with_contention(n_rows, rest_s)
        return after._with_experts(n_rows, report)._with_knot(n_rows, compute_s)

    def compute_s(self, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        """Compute times of passes over these numbers of rows, in ascending order."""
        if not self.knots:
            return np.zeros(len(n_rows))
        rows, seconds = self._points
        slope = self.guessed_slope * seconds[-1]
        if len(rows) > 1:  # times that noise made equal do not make further rows free
            mean = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0])
            slope = max(0.5 * mean, (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]))
        beyond = slope * np.maximum(0.0, n_rows - rows[-1])
        return self.slowdown * np.asarray(np.interp(n_rows, rows, seconds) + beyond)

    def _compute_one_s(self, n_rows: float) -> float:
        return float(self.compute_s(np.array([n_rows]))[0])

    def seconds(self, n_rows: NDArray[Any], beside: bool = False) -> NDArray[np.float64]:
        """Times of passes over these numbers of rows, beside drafting or not."""
        compute_s = self.compute_s(n_rows) * (1 + self.contention * beside)
        seconds = np.maximum(compute_s, self.read_s)
        return seconds if self.used_share == 1 else seconds + self.experts_s(n_rows)

    def experts_s(self, n_rows: NDArray[Any]) -> NDArray[np.float64]:
        """Stalls for experts in passes over these numbers of rows."""
        return self.all_experts_s * theory.chosen_share(self.used_share, n_rows, self.sharing)

    def expert_s(self, n_rows: int) -> float:
        return float(self.experts_s(np.array([n_rows]))[0])

    @property
    def has_fine_experts(self) -> bool:
        """True if several rows may read many times the experts of one row."""
        return self.used_share <= self.fine_share

    @property
    def max_rows(self) -> float:
        """Most rows of a pass; with fine-grained experts, twice as many as were measured."""
        if not self.has_fine_experts:
            return MAX_ROWS
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
        """The curve of an earlier run, rescaled by the passes of this one; invalid values are
        ignored."""
        knots = []
        for octave in range(_octave(MAX_ROWS) + 1):
            rows = within(numbers, f"rows {octave}", MAX_ROWS)
            seconds = within(numbers, f"seconds {octave}", MAX_S)
            variance = within(numbers, f"variance {octave}", 1.0, self.initial_variance)
            if rows >= 1 and seconds > MIN_S and _octave(rows) == octave:
                knots.append(Knot(rows, seconds, max(variance, self.min_variance)))
        after = replace(
            self,
            all_experts_s=self.all_experts_s or within(numbers, "all_experts_s", MAX_S),
            sharing=self.sharing if self.waits else within(numbers, "sharing", 1.5, self.sharing),
            contention=within(numbers, "contention", 4.0, self.contention),
            knots=tuple(knots),
            measured_slowdown=0.0,
        )
        for knot in self.knots:
            after = after._with_knot(knot.rows, self.slowdown * knot.seconds)
        return after

    @property
    def _points(self) -> tuple[list[float], list[float]]:
        """Rows and seconds of the non-decreasing curve: averages adjacent knots that decrease
        (pool adjacent violators)."""
        pooled: list[list[float]] = []  # seconds, weight, number of knots
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
        """The curve after a pass over `rows` with this compute time."""
        seconds = max(seconds, MIN_S)
        expected_s = self._compute_one_s(rows) or seconds
        if not self.measured_slowdown and self.knots:
            return replace(
                self,
                measured_slowdown=seconds / expected_s,
                slowdown_variance=self.initial_variance,
            )
        if not self.measured_slowdown:
            return replace(self, measured_slowdown=1.0)._with_knot(rows, seconds)
        kept, mine = [], None
        for knot in self.knots:
            if _octave(knot.rows) == _octave(rows):
                mine = knot
            elif knot in (self.knots[0], self.knots[-1]):
                kept.append(knot)
            elif knot.variance <= self.max_variance:
                kept.append(knot._replace(variance=knot.variance + self.ageing_variance))
        if mine is None:
            if self.knots and 1 < rows < self.knots[-1].rows:
                seconds = min(seconds, math.sqrt(seconds * expected_s))
            mine = Knot(rows, seconds / self.measured_slowdown, self.initial_variance)
            return replace(self, knots=tuple(sorted([*kept, mine])))
        surprise = min(math.log(seconds / expected_s), math.log(self.max_rise))
        slowdown_variance = self.slowdown_variance + self.drift_variance
        noise = self.slow_pass_variance if surprise > 0 else self.fast_pass_variance
        total = slowdown_variance + mine.variance + noise
        own, common = mine.variance / total, slowdown_variance / total  # Kalman gains
        at = mine.rows + own * (rows - mine.rows)
        height = self._compute_one_s(at) / self.measured_slowdown * math.exp(own * surprise)
        mine = Knot(at, height, max(self.min_variance, mine.variance * (1 - own)))
        return replace(
            self,
            knots=tuple(sorted([*kept, mine])),
            measured_slowdown=self.measured_slowdown * math.exp(common * surprise),
            slowdown_variance=slowdown_variance * (1 - common),
        )

    def _with_attention(self, rows: float, seconds: float, ratio: float) -> PassCurve:
        """The curve for a context of another length, after a prompt pass of `rows` and `seconds`.

        Attention adds a time per row that is proportional to the context. `ratio` is the change of
        the context at the end of the prompt, divided by its average change while it was read.
        """
        expected_s = self._compute_one_s(rows)
        row_s = ratio * (seconds - expected_s) / rows / self.measured_slowdown
        least = min(1.0, seconds / expected_s)
        return replace(
            self,
            knots=tuple(
                Knot(
                    knot.rows,
                    max(least * knot.seconds, knot.seconds + row_s * knot.rows, MIN_S),
                    max(knot.variance, self.initial_variance),
                )
                for knot in self.knots
            ),
        )

    def _with_experts(self, rows: int, report: PassReport) -> PassCurve:
        """The curve after the stalls of a pass for experts."""
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
        usual = Wait(2, usual_s, usual_s * float(self._expert_ratio(np.array(2), self.sharing)))
        before = self.waits or (usual,) * self.prior_waits
        waits = (*before, Wait(rows, first_s, all_s))[-self.max_waits :]
        return replace(after, waits=waits, sharing=self._fitted_sharing(waits))

    def _fitted_sharing(self, waits: Sequence[Wait]) -> float:
        """The exponent with which the stalls for first rows predict the total of all stalls."""
        rows, first_s, all_s = np.array(waits).T
        expected_s = (first_s * self._expert_ratio(rows, SHARINGS[:, None])).sum(axis=1)
        return float(np.interp(all_s.sum(), expected_s, SHARINGS))

    def _expert_ratio(self, n_rows: NDArray[Any], sharing: Any) -> NDArray[np.float64]:
        """Distinct experts that `n_rows` choose, relative to one row."""
        return theory.chosen_share(self.used_share, n_rows, sharing) / self.used_share

    def _with_all_experts(self, rows: float, choice_s: float) -> PassCurve:
        """The curve after a pass of which only the stall of all rows together is known."""
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
            # reading took as long, so this is an upper bound
            found = min(found, self.contention)
        return replace(self, contention=0.7 * self.contention + 0.3 * min(found, 4.0))

    def _read_s_after(self, wall_s: float, idle_s: float, measured_s: float) -> float:
        """The read time after a pass: as measured by the store, or inferred from stalls."""
        waited = idle_s > self.idle_share * wall_s
        if measured_s > 0:
            before_s = self.read_s or measured_s
            after_s = 0.7 * before_s + 0.3 * measured_s
            return after_s if waited else min(before_s, after_s)
        return wall_s if idle_s > 0.25 * wall_s else min(self.read_s, wall_s)


def within(numbers: Numbers, name: str, most: float, default: float = 0.0) -> float:
    """A number of stored state, limited to [0, `most`]."""
    return min(max(numbers.get(name, default), 0.0), most)


def _octave(rows: float) -> int:
    return round(math.log2(max(rows, 1.0)))
