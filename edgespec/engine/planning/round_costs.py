"""Learnt costs of rounds, and how often guesses are right.

It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.drafting.state_store import MAX_S, kept
from edgespec.engine.outcome import PathNode, RoundOutcome
from edgespec.engine.planning.pass_curve import Floats, PassCurve
from edgespec.values import PassReport

MIN_READ = 8
"""Fewest tokens whose reading by the draft is timed."""
FADE = 0.95
"""Factor by which a round reduces the weight of earlier ones."""


@dataclass(slots=True, eq=False)
class RoundCosts:
    """Learnt costs of passes and draft steps, and acceptance rates."""

    usual_hit_rate: ClassVar[float] = 0.9
    """Share of first guesses expected to be right before any was verified."""

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
    kept_s: float = 0.0
    """Drafting time that growth during a pass saves the next round."""
    tries: float = kept(1e3)
    """Fading number of nodes on accepted paths that had guesses after them."""
    hits: float = kept(1e3)
    """Those whose most probable guess was right."""
    right: float = kept(1e3)
    """Those of which any guess was right."""
    claimed: float = kept(1e3)
    """Expected `right`: the sum of the confidences of all guesses after these nodes."""

    # Costs

    def plain_s(self, n_texts: int = 1) -> float:
        """Seconds per token without guesses, if a pass serves `n_texts`."""
        return max(1e-9, (self.curve.second(n_texts) + self.plain_overhead_s) / n_texts)

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable, or is mostly network latency."""
        curve, latency_s = self.curve, self.latency_s
        return curve.is_sure or (
            latency_s > 0 and curve.is_known and 2 * latency_s > curve.second(1)
        )

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        if self.seen_step_s:
            return self.curve.slowdown * self.seen_step_s
        one_s = self.curve.compute_one_s(1)
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

    def guessing_s(self, n_guesses: NDArray[np.int64], n_texts: int = 1) -> Floats:
        """Seconds of rounds that draft lines of so many guesses in every text."""
        pass_s = self.curve.seconds(n_texts * (1 + n_guesses))
        return pass_s + n_guesses * self.step_s + self.overhead_s

    # Hit rates

    @property
    def calibration(self) -> float:
        """Ratio of right guesses to expected ones."""
        return (self.right + 1) / (self.claimed + 1)

    @property
    def hit_rate(self) -> float:
        """Probability that the first guess after an accepted node is right."""
        return (self.hits + 2 * self.usual_hit_rate) / (self.tries + 2)

    def promise(self, n_texts: int, max_guesses: int) -> float:
        """Speedup by the best line of guesses, were they right as often as usual."""
        n_guesses = np.arange(1, max_guesses + 1)
        accepted = np.cumsum(self.usual_hit_rate**n_guesses)
        rates = n_texts * (1 + accepted) / self.guessing_s(n_guesses, n_texts)
        return float(rates.max()) * self.plain_s(n_texts)

    def fade(self, share: float = FADE) -> None:
        """Give earlier guesses less weight; costs keep theirs."""
        for name in ("hits", "right", "claimed", "tries"):
            setattr(self, name, share * min(getattr(self, name), self.tries))

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
        if outcome.reading_s <= max(outcome.growing_s, before_s):  # the draft's caches are warm
            self._average("seen_overhead_s", max(0.0, rest_s))
            if steps:
                self._average("seen_step_s", outcome.growing_s / steps, before_s)
        kept = outcome.provisional_kept / max(1, outcome.provisional_drafted)
        kept_s = outcome.steps_beside * kept * self.curve.slowdown * self.seen_step_s
        self.kept_s = 0.5 * self.kept_s + 0.5 * kept_s

    def see_nodes(self, nodes: Sequence[PathNode]) -> None:
        """Learn from a round whose accepted path had guesses after `nodes`."""
        for node in nodes:
            self.fade()
            self.tries += 1
            self.hits += node.was_first
            self.right += node.was_right
            self.claimed += node.claimed

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
