"""Prices of passes, draft steps and reads on this machine, learnt from rounds.

One robust mean for each octave of a pass's rows, one read time, one time of a draft step. Reads no
clock and calls no model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.outcome import RoundOutcome
from edgespec.values import PassReport

Floats = NDArray[np.float64]

N_ROWS, N_OCTAVES = 2048, 12
"""Rows up to which passes are priced, and their octaves; more rows cost as much."""
MIN_S, MAX_S = 1e-7, 1e4
"""Shorter and longer times in stored state are ignored."""
GUESSED_SLOPE = 0.1
"""Cost of a further row relative to one row, until several rows were measured."""
USUAL_GROWTH = 0.75
"""Exponent of the extrapolation to fewer rows than were measured: seconds ~ rows^0.75."""
MAX_RISE = 1.3
"""Longer times count as so many times the mean, as other processes may have caused them."""
NODE_SHARES, NEW_SHARE = (0.5, 0.9), 0.25
"""Limits of `Prices.node_share`, below 1 so that steps show it again; weight of a new round. With a
stop rule it is the first: then trees do not depend on the clock."""
UP, DOWN = 0.1, 0.4
"""Weights of a time above the mean, and of one below."""
NEW_EXPERTS, NEW_SHARING = 0.05, 1 / 16
"""Weights of the newest pass in the stall for all experts, and in how alike rows choose."""
PRIOR_PASSES = 4
"""Weight of the prior `sharing`, as passes over two rows."""
SHARINGS = np.linspace(0.0, 1.5, 31)
"""Candidates of `Prices.sharing`."""
MIN_READ = 8
"""Fewest tokens whose reading by the draft is timed."""
LONG_CONTEXT = 256
"""Mean context of a prompt from which on its time tells of attention."""


def octave(rows: float) -> int:
    """The size class of a number of rows: 1, 2, 3-5, 6-11, ..."""
    return round(math.log2(min(max(rows, 1.0), N_ROWS)))


class Point(NamedTuple):
    """A round that was predicted."""

    n_rows: int
    tokens: float
    seconds: float


@dataclass(slots=True, eq=False)
class Prices:
    """Seconds of passes by their rows, max(reading, computing) + waiting for experts, and of what
    drafting takes.

    Times are kept relative to one slowness, which a pass that takes another time than expected
    changes as much as the mean of its octave: a machine that others slow down keeps its ratios.
    """

    used_share: float = 1.0
    """Share of a mixture's experts that one row uses; 1 for a dense model."""
    draft_share: float = 0.0
    """Size of the draft relative to the target: the prior of a step's time relative to a pass."""

    read_s: float = 0.0
    """Seconds of reading the streamed segments, once per pass."""
    all_experts_s: float = 0.0
    """Stall of a pass whose rows choose all experts."""
    sharing: float = theory.USUAL_SHARING
    """Exponent: n adjacent rows choose as many distinct experts as n^sharing independent ones."""
    n_choices: int = 0
    """Passes that told of a mixture's stalls."""
    waited_s: float = 0.0
    expected_s: Floats = field(default_factory=lambda: np.zeros(len(SHARINGS)))
    """Fading sums of the stalls of passes over several rows: measured, and as those for first rows
    predict them with each of `SHARINGS`."""
    mean_rows: Floats = field(default_factory=lambda: np.zeros(N_OCTAVES))
    """Rows of the newest pass of each octave; 0 if there was none."""
    mean_s: Floats = field(default_factory=lambda: np.zeros(N_OCTAVES))
    """Seconds of computing with these rows, without stalls."""
    slowness: float = 1.0
    """Current times relative to the means."""
    attention_s: float = 0.0
    """Seconds that a row takes for each token before it, beyond the means."""
    n_context: float = 0.0
    """Tokens before the rows of the next pass."""
    prompt_token_s: float = 0.0
    """Seconds for the target to read one token of the prompt."""
    n_passes: int = 0
    """Passes of rounds in this run."""
    is_recalled: bool = False
    """True while the means are an earlier run's, which the first pass rescales."""

    mean_step_s: float = 0.0
    """Seconds of a draft step; 0 before the first, like the following."""
    node_share: float = NODE_SHARES[0]
    """Time of a further node of a draft step, relative to a step over one."""
    mean_read_s: float = 0.0
    """Seconds for the draft to read one token."""
    mean_rest_s: float = 0.0
    """Seconds that a round with guesses takes besides steps and pass."""

    _computing: Floats | None = None
    """Seconds of computing with 0, 1, ... rows; None after a mean has changed."""

    # Passes

    @property
    def is_known(self) -> bool:
        """True if at least one pass was measured."""
        return bool(self.mean_rows.any()) or self.read_s > 0

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable: after three passes, or at once if
        reading takes longer than computing."""
        return self.n_passes >= 3 or self.read_s > float(self.compute_s(1))

    def pass_s(self, n_rows: Any) -> Any:
        """Seconds of passes over one or several numbers of rows."""
        seconds = np.maximum(self.compute_s(n_rows), self.read_s)
        return seconds + self.choice_s(n_rows) if self.all_experts_s else seconds

    def choice_s(self, n_rows: Any) -> Any:
        """Seconds in which passes wait for experts: as the share that their rows choose."""
        return self.all_experts_s * theory.chosen_share(self.used_share, n_rows, self.sharing)

    def compute_s(self, n_rows: Any) -> Any:
        """Seconds of computing of passes over one or several numbers of rows."""
        return self._flat_s(n_rows) + self.attention_s * self.n_context * n_rows

    def _flat_s(self, n_rows: Any) -> Any:
        """The same without attention."""
        if self._computing is None:
            self._computing = self._interpolated()
        return self.slowness * self._computing[np.minimum(n_rows, N_ROWS)]

    def _interpolated(self) -> Floats:
        known = np.flatnonzero(self.mean_rows)
        if not known.size:
            return np.zeros(N_ROWS + 1)
        rows = self.mean_rows[known]
        # a further row takes at most a row's share of fewer rows, and no more rows take less
        seconds = rows * np.minimum.accumulate(self.mean_s[known] / rows)
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        n = np.arange(N_ROWS + 1)
        fewer = seconds[0] * (n / rows[0]) ** USUAL_GROWTH
        if rows[0] > 1:
            rows, seconds = np.append(1.0, rows), np.append(fewer[1], seconds)
        slope = GUESSED_SLOPE * seconds[-1]
        if rows.size > 1:
            slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        more = np.interp(n, rows, seconds) + slope * np.maximum(0.0, n - rows[-1])
        return np.asarray(np.where(n < self.mean_rows[known[0]], fewer, more))

    def n_hidden(self, most: int) -> int:
        """Number of rows, up to `most`, whose compute time is hidden by the reads of a pass; 0
        before one was measured."""
        rows = np.arange(1, most + 1)
        return int(np.searchsorted(self.compute_s(rows), self.read_s, "right") * self.is_known)

    # Rounds

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        if self.mean_step_s:
            return self.slowness * self.mean_step_s
        return self.draft_share * float(self.compute_s(1))

    @property
    def rest_s(self) -> float:
        """Seconds of a round with guesses besides steps and pass."""
        return self.slowness * self.mean_rest_s or self.step_s

    def plain_s(self, n_texts: int = 1) -> float:
        """Seconds per token without guesses, if a pass serves `n_texts`."""
        return max(1e-9, float(self.pass_s(n_texts)) / n_texts)

    def reading_s(self, n_tokens: int) -> float:
        """Seconds for the draft to read `n_tokens`, at least one draft step."""
        token_s = self.slowness * self.mean_read_s or self.draft_share * self.prompt_token_s
        return max(n_tokens * token_s, self.step_s) if n_tokens else 0.0

    def lines_s(self, n_lines: int, n_texts: int = 1) -> Floats:
        """Seconds of rounds that draft a line of 0, 1, 2, ... guesses for each text."""
        n_guesses = np.arange(n_lines)
        rest_s = np.where(n_guesses, self.rest_s, 0.0)
        passes_s = self.pass_s(n_texts * (1 + n_guesses))
        return np.asarray(passes_s + n_guesses * self.step_s + rest_s)

    def best(self, tokens: Floats) -> Point:
        """The round with most of the expected `tokens` of 0, 1, 2, ... guesses a second."""
        seconds = self.lines_s(len(tokens))
        n = int((tokens / np.maximum(seconds, 1e-9)).argmax())
        return Point(1 + n, float(tokens[n]), float(seconds[n]))

    # What passes and rounds teach

    def put(self, rows: int, seconds: float) -> None:
        """Set the time of computing of an octave."""
        n, self._computing = octave(rows), None
        self.mean_rows[n], self.mean_s[n] = rows, max(seconds / self.slowness, MIN_S)

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from the target's reading of a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts.

        In a context of another length than before, rows take longer in proportion to it.
        """
        passes = max(1, report.passes)
        self.prompt_token_s = report.wall_s / max(1, report.n_tokens)
        rows, is_known = round(report.n_tokens / passes), self.is_known and not self.is_recalled
        if n_context is not None:
            self.n_context = n_context - report.n_tokens / 2
        tells = n_context is not None and is_known and self.n_context > LONG_CONTEXT
        if tells and rows:
            more_s = (report.wall_s - report.stall_s) / passes - float(self._flat_s(rows))
            self.attention_s = max(0.0, more_s / rows / self.n_context)
        self._see_pass(rows, report, passes, computes=not tells)
        if n_context is not None:
            self.n_context = n_context

    def see_reading(self, n_tokens: int, seconds: float) -> None:
        """Learn from the draft's reading of `n_tokens`."""
        if n_tokens >= MIN_READ and seconds:
            expected_s = self.reading_s(n_tokens) / n_tokens
            self._average("mean_read_s", seconds / n_tokens, expected_s)

    def see_round(self, outcome: RoundOutcome) -> None:
        """Learn from the costs of a round."""
        before_s, steps, report = self.step_s, outcome.draft_steps, outcome.report
        self.n_passes += 1
        self._see_pass(outcome.n_rows, report, computes=not outcome.steps_beside)
        rest_s = outcome.wall_s - outcome.growing_s - outcome.reading_s - report.wall_s
        if not outcome.guessed:
            return
        self._average("mean_rest_s", max(0.0, rest_s))
        if steps:
            self._average("mean_step_s", outcome.growing_s / steps, before_s)
        if any(lone := outcome.lone_steps_s) and outcome.further_nodes:
            share = (outcome.growing_s * len(lone) / sum(lone) - steps) / outcome.further_nodes
            self.node_share += NEW_SHARE * (float(np.clip(share, *NODE_SHARES)) - self.node_share)

    def _see_pass(
        self, rows: int, report: PassReport, passes: int = 1, computes: bool = True
    ) -> None:
        """Learn from passes over `rows` each; those beside drafting teach no time of computing."""
        choice_s, wall_s = report.choice_stall_s / passes, report.wall_s / passes
        idle_s = report.stall_s / passes - choice_s
        self._see_reads(wall_s - choice_s, idle_s, report.read_s / passes)
        if not rows or not computes:
            return
        if self.used_share < 1:
            self._see_choices(rows, choice_s, None if passes > 1 else report.first_row_stall_s)
        attention_s = self.attention_s * self.n_context * rows
        seconds = max(MIN_S, wall_s - choice_s - idle_s - attention_s)
        expected_s = float(self._flat_s(rows))
        if self.is_recalled and expected_s:
            self.slowness *= seconds / expected_s
        elif self.mean_rows[octave(rows)]:
            ratio = min(seconds / expected_s, MAX_RISE)
            change = ratio ** (UP if ratio > 1 else DOWN)
            self.put(rows, change * expected_s)
            self.slowness *= change
        else:  # a first time that is slow counts half between those that are known
            is_between = 1 < rows < self.mean_rows.max()
            self.put(rows, min(seconds, math.sqrt(seconds * expected_s)) if is_between else seconds)
        self.is_recalled = False

    def _see_choices(self, rows: int, all_s: float, first_s: float | None) -> None:
        """Learn from the stalls of a pass for a mixture's experts: those for its first row tell of
        one row, the others how alike rows choose."""
        if first_s is None or rows == 1:
            first_s = all_s * float(self._ratio(1, self.sharing) / self._ratio(rows, self.sharing))
        elif self.n_choices:
            if not self.waited_s:
                self.expected_s = PRIOR_PASSES * self.choice_s(1) * self._ratio(2, SHARINGS)
                self.waited_s = float(np.interp(self.sharing, SHARINGS, self.expected_s))
            fade = 1 - NEW_SHARING
            self.expected_s = fade * self.expected_s + first_s * self._ratio(rows, SHARINGS)
            self.waited_s = fade * self.waited_s + all_s
            self.sharing = float(np.interp(self.waited_s, self.expected_s, SHARINGS))
        self.n_choices += 1
        weight = max(NEW_EXPERTS, 1 / self.n_choices)
        self.all_experts_s += weight * (first_s / self.used_share - self.all_experts_s)

    def _ratio(self, n_rows: int, sharing: Any) -> Any:
        """Distinct experts that rows choose, relative to one row."""
        return theory.chosen_share(self.used_share, n_rows, sharing) / self.used_share

    def _see_reads(self, wall_s: float, idle_s: float, measured_s: float) -> None:
        """Learn the read time of a pass: as measured by the store, or inferred from stalls.

        That of a pass that hardly waited is an upper bound.
        """
        measured_s = measured_s or wall_s * (idle_s > 0.25 * wall_s)
        if not self.read_s:
            self.read_s = measured_s
        elif idle_s > 0.05 * wall_s or measured_s < self.read_s:
            self.read_s = _robust(self.read_s, measured_s)

    def _average(self, name: str, now_s: float, expected_s: float = 0.0) -> None:
        """Update a mean; a first time above `expected_s` counts half."""
        before, now = getattr(self, name), now_s / self.slowness
        expected = expected_s / self.slowness or now
        after = _robust(before, now) if before else min(now, math.sqrt(now * expected))
        setattr(self, name, after)

    # What is remembered

    def state_dict(self) -> dict[str, float]:
        """State for `load_state_dict`."""
        octaves = np.flatnonzero(self.mean_rows)
        numbers = {name: float(getattr(self, name)) for name in KEPT}
        return numbers | {f"{self.mean_rows[n]:.0f} rows": float(self.mean_s[n]) for n in octaves}

    def load_state_dict(self, numbers: Mapping[str, float]) -> None:
        """Take the prices of an earlier run; invalid ones are ignored."""
        valid = {name: value for name, value in numbers.items() if 0 <= value <= MAX_S}
        for name in KEPT:
            setattr(self, name, valid.get(name, getattr(self, name)))
        self.sharing = min(self.sharing, float(SHARINGS[-1]))
        self.node_share = min(self.node_share, NODE_SHARES[1])
        means = [(int(name[:-5]), valid[name]) for name in valid if _ROWS.fullmatch(name)]
        if means:
            self.mean_rows[:], self.slowness, self.is_recalled = 0.0, 1.0, True
        for rows, seconds in means:
            self.put(rows, seconds)


KEPT = ("all_experts_s", "sharing", "mean_step_s", "node_share", "mean_read_s", "mean_rest_s")
"""Numbers that are stored, beside the means of passes."""
_ROWS = re.compile(r"\d{1,9} rows")


def _robust(before: float, now: float) -> float:
    return before + (UP if now > before else DOWN) * (min(now, MAX_RISE * before) - before)
