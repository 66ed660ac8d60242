"""Learnt costs of rounds, acceptance rates of guesses, and what guesses brought of late.

Frozen values; each round returns a successor. They read no clock and call no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import PathNode, RoundOutcome
from edgespec.engine.pass_curve import MAX_S, PassCurve, within
from edgespec.values import PassReport

Floats = NDArray[np.float64]

MIN_READ = 8
"""Fewest tokens whose reading by the draft is timed."""
FADE = 0.95
"""Factor by which a round reduces the weight of earlier ones."""
MAX_RECALLED = 6.0
"""Most rounds and guesses that the state of an earlier run counts for."""

COSTS = ("seen_step_s", "seen_token_read_s", "seen_overhead_s", "seen_plain_overhead_s")
COUNTS = ("tries", "hits", "right", "claimed")
PAYOFF = ("tokens", "plain_tokens", "rounds", "pause", "left")


class Yield(NamedTuple):
    """Tokens and seconds of several rounds."""

    tokens: float
    seconds: float

    def rate_with(self, tokens: Floats, seconds: Floats) -> Floats:
        """Tokens per second of these rounds and one more, for each alternative."""
        return (self.tokens + tokens) / np.maximum(self.seconds + seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Payoff:
    """Yield of rounds with guesses of late, and the pause after rounds that did not pay."""

    first_pause: ClassVar[int] = 2
    max_pause: ClassVar[int] = 64
    longest_begun: ClassVar[int] = 8

    tokens: float = 0.0
    """Fading sum of the tokens of rounds with guesses."""
    plain_tokens: float = 0.0
    """Fading sum of the tokens that would have taken their time without guesses."""
    rounds: float = 0.0
    """Fading number of these rounds."""
    pause: int = 0
    """Rounds without guesses that the latest pause lasted; 0 while guesses pay."""
    left: int = 0
    """Rounds left of it."""

    @property
    def speedup(self) -> float:
        """Tokens of rounds with guesses to those without in the same time; 1 before the first."""
        return (self.tokens + 1) / (self.plain_tokens + 1)

    @property
    def pays(self) -> bool:
        """True if guesses were faster than none."""
        return self.speedup > 1

    def in_another_text(self) -> Payoff:
        """The value at the start of a text, which may be easier to guess than the last one."""
        return replace(self, left=min(self.left, self.longest_begun))

    def with_round(self, tokens: float, plain_tokens: float) -> Payoff:
        """The value after a round with guesses, which begins a pause if guesses do not pay."""
        after = replace(
            self,
            tokens=FADE * self.tokens + tokens,
            plain_tokens=FADE * self.plain_tokens + plain_tokens,
            rounds=FADE * self.rounds + 1,
        )
        if after.pays:
            return replace(after, pause=0, left=0)
        pause = min(self.max_pause, max(self.first_pause, 2 * self.pause))
        return replace(after, pause=pause, left=pause)

    def with_plain_round(self, n_rounds: int) -> Payoff:
        """The value after a round without guesses that counts as so many of the pause."""
        return replace(self.faded(FADE), left=max(0, self.left - n_rounds))

    def faded(self, kept: float) -> Payoff:
        """The value with less weight of earlier rounds."""
        return replace(
            self,
            tokens=kept * self.tokens,
            plain_tokens=kept * self.plain_tokens,
            rounds=kept * self.rounds,
        )


@dataclass(frozen=True, slots=True)
class Experience:
    """Learnt costs of passes and draft steps, acceptance rates, and the payoff of guesses."""

    usual_hit_rate: ClassVar[float] = 0.9
    """Share of first guesses expected to be right before any was verified."""

    curve: PassCurve = field(default_factory=PassCurve)
    payoff: Payoff = field(default_factory=Payoff)
    draft_share: float = 0.0
    """Size of the draft relative to the target: the prior of a step's time relative to a pass."""
    latency_s: float = 0.0
    """Network latency in a pass of the target, which a draft step does not have."""

    seen_step_s: float = 0.0
    """Mean seconds of a draft step at slowdown 1; 0 before the first."""
    seen_token_read_s: float = 0.0
    """Mean seconds for the draft to read one token at slowdown 1; 0 before it read any."""
    prompt_token_s: float = 0.0
    """Seconds for the target to read one token of the prompt."""
    seen_overhead_s: float = 0.0
    """Mean seconds of a round with guesses besides steps and pass, at slowdown 1."""
    seen_plain_overhead_s: float = 0.0
    """Mean seconds of a round without guesses besides its pass, at slowdown 1."""
    kept_s: float = 0.0
    """Drafting time that growth during a pass saves the next round."""
    tries: float = 0.0
    """Fading number of nodes on accepted paths that had guesses after them."""
    hits: float = 0.0
    """Those whose most probable guess was right."""
    right: float = 0.0
    """Those of which any guess was right."""
    claimed: float = 0.0
    """Expected `right`: the sum of the confidences of all guesses after these nodes."""

    # Costs

    @property
    def plain_s(self) -> float:
        """Seconds per token without guesses."""
        return self.plain_s_of(1)

    def plain_s_of(self, n_texts: int) -> float:
        """Seconds per token without guesses, if a pass serves `n_texts`."""
        return max(1e-9, (self.curve.second(n_texts) + self.plain_overhead_s) / n_texts)

    @property
    def is_sure(self) -> bool:
        """True if the time of a pass over one row is reliable, or is mostly network latency."""
        is_remote = self.curve.is_known and 2 * self.latency_s > self.curve.second(1)
        return is_remote or self.curve.is_sure

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        if self.seen_step_s:
            return self.curve.slowdown * self.seen_step_s
        pass_s = float(self.curve.compute_s(np.ones(1))[0])
        return self.draft_share * self._without_latency(pass_s)

    def _without_latency(self, pass_s: float) -> float:
        """Seconds of a pass without network latency, at least a tenth of it."""
        return max(0.1 * pass_s, pass_s - self.latency_s)

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

    # Yields

    @property
    def calibration(self) -> float:
        """Ratio of right guesses to expected ones."""
        return (self.right + 1) / (self.claimed + 1)

    @property
    def hit_rate(self) -> float:
        """Probability that the first guess after an accepted node is right."""
        return (self.hits + 2 * self.usual_hit_rate) / (self.tries + 2)

    def late(self, n_texts: int) -> Yield:
        """Tokens and seconds of rounds with guesses of late, in passes over `n_texts`."""
        return Yield(self.payoff.tokens, self.payoff.plain_tokens * self.plain_s_of(n_texts))

    @property
    def rate(self) -> float:
        """Tokens per second of late, at least that without guesses."""
        return max(1.0, self.payoff.speedup) / self.plain_s

    def promise(self, n_texts: int, max_guesses: int) -> float:
        """Speedup by the best line of guesses, were they right as often as usual."""
        n_guesses = np.arange(1, max_guesses + 1)
        accepted = np.cumsum(self.usual_hit_rate**n_guesses)
        rates = n_texts * (1 + accepted) / self.guessing_s(n_guesses, n_texts)
        return float(rates.max()) * self.plain_s_of(n_texts)

    # What is learnt

    def observe_prompt(self, report: PassReport, n_context: int | None = None) -> Experience:
        """The value after the target read a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        passes = max(1, report.passes)
        wall_s = passes * self._without_latency(report.wall_s / passes)
        token_s = wall_s / max(1, report.n_tokens)
        return replace(
            self, curve=self.curve.with_prompt(report, n_context), prompt_token_s=token_s
        )

    def observe_reading(self, n_tokens: int, seconds: float) -> Experience:
        """The value after the draft read `n_tokens`."""
        if n_tokens < MIN_READ or not seconds:
            return self
        expected_s = self.reading_s(n_tokens) / n_tokens
        token_s = self._mean(self.seen_token_read_s, seconds / n_tokens, expected_s)
        return replace(self, seen_token_read_s=token_s)

    def observe_costs(self, outcome: RoundOutcome) -> Experience:
        """The value after the costs of a round."""
        report = PassReport(
            wall_s=outcome.pass_s,
            stall_s=outcome.stall_s,
            choice_stall_s=outcome.choice_stall_s,
            first_row_stall_s=outcome.first_row_stall_s,
            read_s=outcome.read_s,
        )
        curve = self.curve.with_pass(outcome.n_rows, report, outcome.steps_beside > 0)
        after, steps = replace(self, curve=curve), outcome.draft_steps
        rest_s = outcome.wall_s - outcome.growing_s - outcome.reading_s - outcome.pass_s
        if not outcome.guessed:
            plain_s = after._mean(self.seen_plain_overhead_s, max(0.0, rest_s))
            return replace(after, seen_plain_overhead_s=plain_s)
        step_s, overhead_s = self.seen_step_s, self.seen_overhead_s
        if outcome.reading_s <= max(outcome.growing_s, self.step_s):  # the draft's caches are warm
            overhead_s = after._mean(overhead_s, max(0.0, rest_s))
            if steps:
                step_s = after._mean(step_s, outcome.growing_s / steps, self.step_s)
        kept = outcome.provisional_kept / max(1, outcome.provisional_drafted)
        kept_s = outcome.steps_beside * kept * curve.slowdown * step_s
        return replace(
            after,
            seen_step_s=step_s,
            seen_overhead_s=overhead_s,
            kept_s=0.5 * self.kept_s + 0.5 * kept_s,
        )

    def observe_nodes(self, nodes: Sequence[PathNode]) -> Experience:
        """The value after a round whose accepted path had guesses after `nodes`."""
        tries, hits, right, claimed = self.tries, self.hits, self.right, self.claimed
        for node in nodes:
            tries, hits = FADE * tries + 1, FADE * hits + node.was_first
            right, claimed = FADE * right + node.was_right, FADE * claimed + node.claimed
        return replace(self, tries=tries, hits=hits, right=right, claimed=claimed)

    def faded(self, kept: float) -> Experience:
        """The value with less weight of earlier guesses; costs keep theirs."""
        return replace(
            self,
            payoff=self.payoff.faded(kept),
            tries=kept * self.tries,
            hits=kept * self.hits,
            right=kept * self.right,
            claimed=kept * self.claimed,
        )

    def _mean(self, before: float, now_s: float, expected_s: float = 0.0) -> float:
        """The updated mean of a duration at slowdown 1.

        Longer durations get less weight, as other processes may have caused them; a first one above
        `expected_s` is replaced by the geometric mean of both.
        """
        now = now_s / self.curve.slowdown
        if not before:
            expected = expected_s / self.curve.slowdown or now
            return min(now, math.sqrt(now * expected))
        share = 0.1 if now > before else 0.4
        return before + share * (min(now, PassCurve.max_rise * before) - before)

    # What is remembered

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        numbers: dict[str, float] = {name: getattr(self, name) for name in (*COSTS, *COUNTS)}
        numbers |= {name: getattr(self.payoff, name) for name in PAYOFF}
        return {**self.curve.state_dict(), **numbers}

    def load_state_dict(self, numbers: Numbers) -> Experience:
        """The value with the state of an earlier run, which counts for at most `MAX_RECALLED`
        rounds; invalid numbers are ignored."""
        costs: Any = {name: getattr(self, name) or within(numbers, name, MAX_S) for name in COSTS}
        after = replace(self, curve=self.curve.load_state_dict(numbers), **costs)
        if self.tries or self.payoff.plain_tokens:
            return after
        tries, plain_tokens = within(numbers, "tries", 1e3), within(numbers, "plain_tokens", 1e3)
        counts: Any = {name: within(numbers, name, tries) for name in COUNTS}
        payoff = Payoff(
            within(numbers, "tokens", 1e3 * plain_tokens),
            plain_tokens,
            within(numbers, "rounds", 1e3),
            int(within(numbers, "pause", Payoff.max_pause)),
            int(within(numbers, "left", Payoff.max_pause)),
        )
        kept = min(1.0, MAX_RECALLED / max(tries, plain_tokens, 1e-9))
        return replace(after, payoff=payoff, **counts).faded(kept)
