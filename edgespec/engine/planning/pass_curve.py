"""Duration of a target pass as a function of its rows, learnt from measured passes.

It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.drafting.state_store import MAX_S, Numbers, kept, recall
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.values import PassReport

Floats = NDArray[np.float64]

MAX_ROWS = 1e4
"""More rows in stored state are ignored."""
MIN_S = 1e-7
"""Shorter compute times count as this."""


def octave(rows: float) -> int:
    """The size class of a number of rows: 1, 2, 3-5, 6-11, ..."""
    return round(math.log2(max(rows, 1.0)))


N_OCTAVES = octave(MAX_ROWS) + 1
OCTAVES = tuple(2.0**n for n in range(N_OCTAVES))


@dataclass(slots=True, eq=False)
class PassCurve:
    """Seconds of a pass by its rows: max(reading, computing) + waiting for experts.

    Compute time is a piecewise linear, non-decreasing function with one knot per octave of rows, so
    that it can have steps and kinks. The pass over the prompt gives the first knot.

    All knots are multiplied by one slowdown, the current speed of the machine. The deviation of a
    pass from its prediction is divided between its knot and the slowdown in proportion to their
    variances (a Kalman filter). The first pass of a run rescales the knots of earlier runs.
    """

    initial_variance: ClassVar[float] = 0.04
    """Variance of a knot after one pass."""
    slow_pass_variance: ClassVar[float] = 0.1
    """Observation variance of passes slower than expected, as other processes can cause."""
    fast_pass_variance: ClassVar[float] = 0.01
    """Observation variance of passes faster than expected."""
    min_variance: ClassVar[float] = 0.003
    """Lower bound of a knot's variance."""
    drift_variance: ClassVar[float] = 0.004
    """Increase of the slowdown's variance per pass."""
    guessed_slope: ClassVar[float] = 0.1
    """Assumed cost of a further row relative to one row, until several rows were measured."""
    usual_growth: ClassVar[float] = 0.75
    """Exponent of the extrapolation to fewer rows than were measured: seconds ~ rows^0.75."""
    max_rise: ClassVar[float] = 1.3
    """Upper bound of a measured time relative to the expected time; longer ones are clipped."""
    idle_share: ClassVar[float] = 0.05
    """Passes that stalled for a smaller share give only an upper bound of the read time."""
    min_growth: ClassVar[float] = 1 / 16
    """Least relative change of the context at which a change of pass time is attributed to
    attention."""
    short_text: ClassVar[int] = 512
    """Least absolute change for the same, in tokens."""

    experts: ExpertStalls = field(default_factory=ExpertStalls)
    read_s: float = 0.0
    """Seconds of reading the streamed segments, once per pass."""
    knot_rows: Floats = kept(MAX_ROWS, size=N_OCTAVES)
    """Knots by octave: mean rows of the passes, 0 if none was measured."""
    knot_s: Floats = kept(MAX_S, size=N_OCTAVES)
    """Their compute time at slowdown 1, without stalls."""
    knot_variance: Floats = kept(1.0, size=N_OCTAVES)
    """Variance of log(knot_s)."""
    measured_slowdown: float = 0.0
    """Current compute time relative to the knots; 0 before this run's first pass."""
    slowdown_variance: float = 0.0
    """Variance of the logarithm of `measured_slowdown`."""
    n_passes: int = 0
    """Passes of rounds in this run."""
    n_context: int = 0
    """Tokens of context to which the knots apply."""
    _points: tuple[list[float], list[float], float] | None = None
    """Result of `_interpolated`; None after a change of a knot. Lists, as rounds ask for one number
    of rows, and numpy's functions take ten times as long for that."""

    @property
    def slowdown(self) -> float:
        """Current compute time relative to the learnt one; 1 before this run's first pass."""
        return self.measured_slowdown or 1.0

    @property
    def known(self) -> NDArray[np.int64]:
        """Octaves with measured passes, ascending."""
        return np.flatnonzero(self.knot_rows)

    @property
    def is_known(self) -> bool:
        """True if at least one pass was measured."""
        return self.known.size > 0 or self.read_s > 0

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable: after three passes, or at once if
        reading takes longer than computing."""
        if self.read_s and self.read_s > self.compute_s(1):
            return True
        return self.n_passes >= 3

    # The curve

    def second(self, n_rows: int) -> float:
        """Time of a pass over `n_rows`."""
        seconds = max(float(self.compute_s(n_rows)), self.read_s)
        return seconds + float(self.experts.seconds(n_rows) if self.experts.used_share < 1 else 0)

    def seconds(self, n_rows: float | NDArray[Any]) -> Any:
        """Times of passes over one or several numbers of rows."""
        seconds = np.maximum(self.compute_s(n_rows), self.read_s)
        return seconds if self.experts.used_share == 1 else seconds + self.experts.seconds(n_rows)

    def compute_s(self, n_rows: float | NDArray[Any]) -> Any:
        """Compute times of passes over one or several numbers of rows."""
        if self._points is None:
            self._points = self._interpolated()
        rows, seconds, slope = self._points
        if isinstance(n_rows, np.ndarray):
            beyond = slope * np.maximum(0.0, n_rows - rows[-1])
            return self.slowdown * (np.interp(n_rows, rows, seconds) + beyond)
        n = bisect_right(rows, n_rows)
        if 0 < n < len(rows):
            slope = (seconds[n] - seconds[n - 1]) / (rows[n] - rows[n - 1])
        begin = max(0, n - 1)
        return self.slowdown * (seconds[begin] + slope * max(0.0, n_rows - rows[begin]))

    def _interpolated(self) -> tuple[list[float], list[float], float]:
        """Rows and seconds of the curve's points, from one row on, and the slope beyond them."""
        rows = [n_rows for n_rows in self.knot_rows.tolist() if n_rows]
        if not rows:
            return [1.0], [0.0], 0.0
        # no more rows take less time
        heights = [*accumulate(self.knot_s[self.knot_rows > 0][::-1].tolist(), min)][::-1]
        fewer = [n for n in OCTAVES if n < rows[0]]
        seconds = [heights[0] * (n / rows[0]) ** self.usual_growth for n in fewer] + heights
        rows = fewer + rows
        slope = self.guessed_slope * seconds[-1]
        if len(rows) > 1:  # times that noise made equal do not make further rows free
            mean = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0])
            slope = max(0.5 * mean, (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]))
        return rows, seconds, slope

    # What passes teach

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from reading a prompt, at whose end the context has `n_context` tokens; None if
        passes serve several texts."""
        passes = max(1, report.passes)
        rows, wall_s = report.n_tokens / passes, report.wall_s / passes
        choice_s, stall_s = report.choice_stall_s / passes, report.stall_s / passes
        self._see_reads(wall_s - choice_s, stall_s - choice_s, report.read_s / passes)
        n_before, n_now = self.n_context, self.n_context if n_context is None else n_context
        self.n_context = n_now
        if rows < 1:
            return
        self.experts.see_all(rows, choice_s)
        grown = n_now - report.n_tokens / 2 - n_before
        is_telling = abs(grown) > max(self.short_text, self.min_growth * n_now)
        if n_context is None or not self.measured_slowdown or not is_telling:
            self._see_compute(rows, wall_s - stall_s)
        else:
            self._see_attention(rows, wall_s - stall_s, (n_now - n_before) / grown)

    def see_pass(self, n_rows: int, report: PassReport, drafted_beside: bool = False) -> None:
        """Learn from a pass over `n_rows`; one beside drafting teaches no compute time."""
        rest_s = report.wall_s - report.choice_stall_s
        self._see_reads(rest_s, report.stall_s - report.choice_stall_s, report.read_s)
        self.n_passes += 1
        if not drafted_beside:
            self.experts.see_pass(n_rows, report)
            self._see_compute(n_rows, max(0.0, report.wall_s - report.stall_s))

    def put(self, rows: float, seconds: float, variance: float) -> None:
        """Add or replace a knot."""
        n, self._points = octave(rows), None
        self.knot_rows[n], self.knot_s[n] = rows, max(seconds, MIN_S)
        self.knot_variance[n] = variance

    def _see_compute(self, rows: float, seconds: float) -> None:
        """Learn from a pass over `rows` with this compute time."""
        seconds, mine = max(seconds, MIN_S), octave(rows)
        expected_s = self.compute_s(rows) or seconds
        if not self.measured_slowdown:
            self.measured_slowdown = seconds / expected_s
            if self.knot_rows.any():
                self.slowdown_variance = self.initial_variance
                return
        if self.knot_rows[mine]:
            self._correct(mine, rows, math.log(seconds / expected_s))
        else:
            if 1 < rows < self.knot_rows.max():
                seconds = min(seconds, math.sqrt(seconds * expected_s))
            self.put(rows, seconds / self.slowdown, self.initial_variance)

    def _correct(self, n: int, rows: float, surprise: float) -> None:
        """Correct a knot and the slowdown after a pass over `rows` took exp(`surprise`) times as
        long as expected."""
        surprise = min(surprise, math.log(self.max_rise))
        before, drifted = float(self.knot_variance[n]), self.slowdown_variance + self.drift_variance
        noise = self.slow_pass_variance if surprise > 0 else self.fast_pass_variance
        own, common = (part / (drifted + before + noise) for part in (before, drifted))  # Kalman
        at = float(self.knot_rows[n] + own * (rows - self.knot_rows[n]))
        height = self.compute_s(at) / self.slowdown * math.exp(own * surprise)
        self.put(at, height, max(self.min_variance, before * (1 - own)))
        self.measured_slowdown *= math.exp(common * surprise)
        self.slowdown_variance = drifted * (1 - common)

    def _see_attention(self, rows: float, seconds: float, ratio: float) -> None:
        """Learn from a prompt pass of `rows` and `seconds` in a context of another length.

        Attention adds a time per row that is proportional to the context. `ratio` is the change of
        the context at the end of the prompt, divided by its average change while it was read.
        """
        expected_s = self.compute_s(rows)
        row_s = ratio * (seconds - expected_s) / rows / self.slowdown
        least_s = max(MIN_S, min(1.0, seconds / expected_s)) * self.knot_s
        self.knot_s = np.maximum(least_s, self.knot_s + row_s * self.knot_rows)
        self.knot_variance = np.maximum(self.knot_variance, self.initial_variance)
        self._points = None

    def _see_reads(self, wall_s: float, idle_s: float, measured_s: float) -> None:
        """Learn the read time from a pass: as measured by the store, or inferred from stalls."""
        measured_s = measured_s or wall_s * (idle_s > 0.25 * wall_s)
        before_s = self.read_s or measured_s
        after_s = 0.7 * before_s + 0.3 * measured_s
        waited = idle_s > self.idle_share * wall_s
        self.read_s = after_s if waited else min(before_s, after_s)

    # What is remembered

    def restore(self, numbers: Numbers) -> None:
        """Take the knots of an earlier run, rescaled by the passes of this one; invalid values are
        ignored."""
        rows, seconds = self.knot_rows[self.known], self.slowdown * self.knot_s[self.known]
        recall(numbers, self, self.experts)
        octaves = [octave(rows) for rows in self.knot_rows]
        is_valid = (octaves == np.arange(N_OCTAVES)) & (self.knot_s > MIN_S)
        self.knot_rows[~is_valid | (self.knot_rows < 1)] = 0.0
        self.knot_variance = np.maximum(self.knot_variance, self.min_variance)
        self.measured_slowdown, self._points = 0.0, None
        for its_rows, its_s in zip(rows.tolist(), seconds.tolist(), strict=True):
            self._see_compute(its_rows, its_s)
