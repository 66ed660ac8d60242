"""Learnt costs of rounds.

It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from edgespec.engine.drafting.state_store import MAX_S, kept
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.values import PassReport

MIN_READ = 8
"""Fewest tokens whose reading by the draft is timed."""


@dataclass(slots=True, eq=False)
class RoundCosts:
    """Learnt costs of passes and draft steps."""

    curve: PassCurve = field(default_factory=PassCurve)
    draft_share: float = 0.0
    """Size of the draft relative to the target: the prior of a step's time relative to a pass."""
    latency_s: float = 0.0
    """Network latency in a pass of the target, which a draft step does not have."""

    seen_step_s: float = kept(MAX_S)
    """Mean seconds of a draft step at slowdown 1; 0 before the first."""
    seen_token_read_s: float = kept(MAX_S)
    """Mean seconds for the draft to read one token at slowdown 1; 0 before it read any."""
    prompt_token_s: float = 0.0
    """Seconds for the target to read one token of the prompt."""
    seen_overhead_s: float = kept(MAX_S)
    """Mean seconds of a round with guesses besides steps and pass, at slowdown 1."""
    seen_plain_overhead_s: float = kept(MAX_S)
    """Mean seconds of a round without guesses besides its pass, at slowdown 1."""

    # Costs

    def plain_s(self, n_texts: int = 1) -> float:
        """Seconds per token without guesses, if a pass serves `n_texts`."""
        return max(1e-9, (self.curve.second(n_texts) + self.plain_overhead_s) / n_texts)

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable, or is mostly network latency."""
        return self.curve.is_sure or 2 * self.latency_s > self.curve.second(1) > 0

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        if self.seen_step_s:
            return self.curve.slowdown * self.seen_step_s
        one_s = float(self.curve.compute_s(1))
        return self.draft_share * max(0.1 * one_s, one_s - self.latency_s)

    @property
    def overhead_s(self) -> float:
        """Seconds of a round with guesses besides steps and pass."""
        return self.curve.slowdown * self.seen_overhead_s or self.step_s

    @property
    def plain_overhead_s(self) -> float:
        """Seconds of a round without guesses besides its pass."""
        return self.curve.slowdown * self.seen_plain_overhead_s

    def reading_s(self, n_tokens: int) -> float:
        """Seconds for the draft to read `n_tokens`, at least one draft step."""
        token_s = self.curve.slowdown * self.seen_token_read_s
        token_s = token_s or self.draft_share * self.prompt_token_s
        return max(n_tokens * token_s, self.step_s) if n_tokens else 0.0

    # What rounds teach

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from the target's reading of a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        waited_s = min(0.9 * report.wall_s, report.passes * self.latency_s)
        self.prompt_token_s = (report.wall_s - waited_s) / max(1, report.n_tokens)
        self.curve.see_prompt(report, n_context)

    def see_reading(self, n_tokens: int, seconds: float) -> None:
        """Learn from the draft's reading of `n_tokens`."""
        if n_tokens >= MIN_READ and seconds:
            expected_s = self.reading_s(n_tokens) / n_tokens
            self._average("seen_token_read_s", seconds / n_tokens, expected_s)

    def see_costs(self, outcome: RoundOutcome) -> None:
        """Learn from the costs of a round."""
        before_s, steps = self.step_s, outcome.draft_steps
        self.curve.see_pass(outcome.n_rows, outcome.report, outcome.steps_beside > 0)
        rest_s = outcome.wall_s - outcome.growing_s - outcome.reading_s - outcome.report.wall_s
        if not outcome.guessed:
            self._average("seen_plain_overhead_s", max(0.0, rest_s))
            return
        # after much reading caches are warm, so that further rounds tell more
        is_usual = outcome.reading_s <= max(outcome.growing_s, before_s)
        if is_usual:
            self._average("seen_overhead_s", max(0.0, rest_s))
        if steps and (is_usual or not self.seen_step_s):
            self._average("seen_step_s", outcome.growing_s / steps, before_s)

    def _average(self, name: str, now_s: float, expected_s: float = 0.0) -> None:
        """Update the mean of a duration at slowdown 1.

        Longer durations get less weight, as other processes may have caused them; a first one above
        `expected_s` is replaced by the geometric mean of both.
        """
        before, now = getattr(self, name), now_s / self.curve.slowdown
        if before:
            share = 0.1 if now > before else 0.4
            after = before + share * (min(now, PassCurve.max_rise * before) - before)
        else:
            expected = expected_s / self.curve.slowdown or now
            after = min(now, math.sqrt(now * expected))
        setattr(self, name, after)
