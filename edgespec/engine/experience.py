"""Learnt costs and yields of rounds, and the time account of one text.

Frozen values; each round returns a successor. They read no clock and call no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.chances import Chances
from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import PathNode, Rehearsed, RoundOutcome
from edgespec.engine.pass_curve import MAX_S, PassCurve, within
from edgespec.values import PassReport

Floats = NDArray[np.float64]

CREDIT_SHARE = 0.02
"""Share of a text's time that unproven guesses may cost."""
PROMISED_TOKENS = 32
"""Tokens for whose time a text has credit from the start: the bound on the loss holds for texts of
this length."""
MIN_REHEARSAL, MAX_REHEARSAL = 8, 16
"""Number of tokens in one rehearsal (see `Rehearsed`)."""
PROMPT_WEIGHT = 0.25
"""Weight of a rehearsal on the prompt, whose tokens the target has not picked."""
MAX_LINE = 16
"""Longest line, in draft steps, whose rate is estimated."""
WIDTH = 3
"""Guesses per token in the wide lines whose rate is estimated."""
FADE = 0.95
"""Factor by which a round reduces the weight of earlier ones."""
MAX_RECALLED = 6.0
"""Most rounds and tries that the state of an earlier run counts for."""


@dataclass(frozen=True, slots=True)
class TextAccount:
    """The time account of one text: elapsed and saved seconds, and the credit for guesses."""

    unread: int = 0
    """Committed tokens that the draft has not read."""
    n_tokens: int = 0
    """Tokens generated so far."""
    room: int = 0
    """Most tokens that may follow."""
    n_tried: int = 0
    """`n_tokens` when the draft last guessed or was rehearsed."""
    prompt_s: float = 0.0
    """Seconds in which the target read the prompt."""
    elapsed_s: float = 0.0
    """Seconds of all rounds so far."""
    saved_s: float = 0.0
    """Seconds saved by guesses so far; negative if they cost time."""
    found: tuple[Rehearsed, ...] = ()
    """Rehearsals of a free drafter since the latest round with guesses."""

    def credit_s(self, plain_s: float, n_texts: int = 1, share: float = CREDIT_SHARE) -> float:
        """Seconds that guesses may cost: `share` of the text's time, plus what they saved.

        A token without guesses takes `plain_s`.
        """
        earned_s = max(self.elapsed_s, min(PROMISED_TOKENS * n_texts, self.room) * plain_s)
        return share * earned_s + self.saved_s

    def with_reading(self, seconds: float) -> TextAccount:
        """The account after the draft read its unread tokens in this time."""
        return replace(self, unread=0, saved_s=self.saved_s - self.unpaid_s(seconds))

    def unpaid_s(self, reading_s: float) -> float:
        """Part of the draft's reading time that is charged: what exceeds `CREDIT_SHARE` of the
        target's time for the prompt."""
        return max(0.0, reading_s - CREDIT_SHARE * self.prompt_s)

    def with_savings(self, share: float) -> TextAccount:
        """The account with a share of its savings; a loss stays as it is."""
        return replace(self, saved_s=min(self.saved_s, share * self.saved_s))

    def with_text(self, n_unread: int, room: int) -> TextAccount:
        """The account after one more text joined."""
        return replace(self, unread=n_unread, room=self.room + room)

    def _unread_after(self, outcome: RoundOutcome) -> int:
        """Unread tokens before this round's own: a rehearsal of all of them counts as reading."""
        n_tried = len(outcome.rehearsed) + 1
        return 0 if n_tried > 1 and self.unread <= n_tried else self.unread

    def with_round(self, outcome: RoundOutcome, saved_s: float) -> TextAccount:
        """The account after a round that saved `saved_s`."""
        return replace(
            self,
            unread=0 if outcome.guessed else self._unread_after(outcome) + outcome.n_tokens,
            n_tokens=self.n_tokens + outcome.n_tokens,
            n_tried=self.n_tokens if outcome.guessed or outcome.rehearsed else self.n_tried,
            room=max(0, self.room - outcome.n_tokens),
            elapsed_s=self.elapsed_s + outcome.wall_s,
            saved_s=self.saved_s + saved_s,
            found=() if outcome.guessed else (*self.found, *outcome.found),
        )


class Yield(NamedTuple):
    """Total tokens and seconds of several rounds."""

    tokens: float
    seconds: float

    def rate_with(self, tokens: Floats, seconds: Floats) -> Floats:
        """Tokens per second of these rounds and one more, for each alternative."""
        return (self.tokens + tokens) / np.maximum(self.seconds + seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Experience:
    """Learnt costs of passes and draft steps, acceptance rates, and the yield of recent rounds.

    A round counts with its best point, with or without the credit for it: what was possible, not
    what was done.
    """

    curve: PassCurve = field(default_factory=PassCurve)
    chances: Chances = field(default_factory=Chances)
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
    rounds: float = 0.0
    """Fading number of rounds with guesses, rehearsed ones included."""
    claimed: float = 0.0
    """Fading sum of their expected accepted guesses, before calibration."""
    plain_tokens: float = 0.0
    """Fading sum of their time, in tokens that would have taken it without guesses."""
    kept_s: float = 0.0
    """Drafting time that growth during a pass saves the next round."""

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

    @property
    def seconds(self) -> float:
        """Seconds of the recent best rounds, at the machine's current speed."""
        return self.plain_tokens * self.plain_s

    def reading_s(self, n_tokens: int) -> float:
        """Seconds for the draft to read `n_tokens`, at least one draft step."""
        token_s = self.curve.slowdown * self.seen_token_read_s
        token_s = token_s or self.draft_share * self.prompt_token_s
        return max(n_tokens * token_s, self.step_s) if n_tokens else 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of the recent best rounds, at least that without guesses."""
        expected = self.rounds + self.chances.calibration * self.claimed
        plain_s = self.plain_s
        return max(1 / plain_s, (expected + 1) / (self.plain_tokens * plain_s + plain_s))

    def recent_best(self) -> Yield:
        """Expected tokens and seconds of the recent best rounds."""
        return Yield(self.rounds + self.chances.calibration * self.claimed, self.seconds)

    def guessing_rate(self, n_texts: int, max_rows: int) -> float:
        """Tokens per second of the recent best rounds and a hypothetical one on the best line."""
        tokens, seconds = self._lines(n_texts, max_rows, 1.0)
        return float(self.recent_best().rate_with(tokens, seconds).max())

    def line_rate(self, n_texts: int, max_rows: int) -> float:
        """Tokens per second of the best line, from the hit rates weighted by `text_evidence`."""
        tokens, seconds = self._lines(n_texts, max_rows, self.chances.text_evidence)
        return float((tokens / np.maximum(seconds, 1e-9)).max())

    def _lines(self, n_texts: int, max_rows: int, share: float) -> tuple[Floats, Floats]:
        """Expected tokens and seconds of rounds on lines of 1, 2, ... steps in each text, with one
        guess per token and with `WIDTH`; acceptance rates are multiplied by `share`."""
        tokens, seconds = [], []
        for width in (1, WIDTH):
            steps = np.arange(1, max(2, min(MAX_LINE, (max_rows // n_texts - 1) // width) + 1))
            accepted = self.chances.line(0.0, len(steps), is_wide=width > 1)
            tokens.append(n_texts * (1 + share * np.cumsum(accepted)))
            seconds.append(self.guessing_s(steps, n_texts, width))
        return np.concatenate(tokens), np.concatenate(seconds)

    def guessing_s(self, n_steps: NDArray[np.int64], n_texts: int = 1, width: int = 1) -> Floats:
        """Seconds of rounds of `n_steps` draft steps, which add `width` nodes each to every
        text."""
        pass_s = self.curve.seconds(n_texts * (1 + width * n_steps))
        return pass_s + n_steps * self.step_s + self.overhead_s

    @property
    def proven_rate(self) -> float:
        """Tokens per second of the recent best rounds, their guesses weighted by
        `text_evidence`."""
        proven = self.rounds + self.chances.text_evidence * self.chances.calibration * self.claimed
        return proven / self.seconds if self.seconds > 0 else 0.0

    # What is learnt

    def for_texts(self, before: int, now: int) -> Experience:
        """The value for passes over another number of texts.

        With fewer texts, the recent best rounds keep their speed relative to rounds without
        guesses; with more, they are discarded.
        """
        share = now / before if now < before else 0.0
        share_s = share * self.plain_s_of(now) / self.plain_s_of(before)
        return replace(
            self,
            rounds=share * self.rounds,
            claimed=share * self.claimed,
            plain_tokens=share_s * self.plain_tokens,
        )

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
        if n_tokens < MIN_REHEARSAL or not seconds:
            return self
        expected_s = self.reading_s(n_tokens) / n_tokens
        token_s = self._mean(self.seen_token_read_s, seconds / n_tokens, expected_s)
        return replace(self, seen_token_read_s=token_s)

    def observe_prompt_rehearsal(self, tried: Sequence[Rehearsed]) -> Experience:
        """The value after a rehearsal on a prompt: evidence for the calibration of confidences
        rather than for hit rates."""
        n_right = PROMPT_WEIGHT * sum(one.was_right for one in tried)
        n_wrong = 0.5 * PROMPT_WEIGHT * sum(one.claimed for one in tried if not one.was_right)
        return replace(self, chances=self.chances.with_calibration(n_right, n_right + n_wrong))

    def observe_rehearsal(self, tried: Sequence[Rehearsed]) -> Experience:
        """The value after a rehearsal on generated text: as if rounds had drafted lines there, each
        of the length with the highest expected rate."""
        chances, rounds, claimed, spent_s = self.chances, 0, 0.0, 0.0
        is_sure = False
        for one in tried:
            chances = chances.with_node(
                PathNode(is_sure, one.claimed, one.was_right, one.was_first)
            )
            is_sure = one.was_first and one.confidence >= Chances.high_confidence
        at = 0
        while at < len(tried):
            line = np.array([one.confidence for one in tried[at:]])
            honest = np.cumprod(np.minimum(1.0, chances.calibration * line))
            accepted = np.cumsum([0.0, *honest])
            steps = np.arange(len(accepted))
            round_s = self.guessing_s(steps)
            late = replace(self, chances=chances).recent_best()
            best = int(late.rate_with(1 + accepted, round_s).argmax())
            rounds, claimed = rounds + 1, claimed + float(accepted[best]) / chances.calibration
            spent_s += float(round_s[best])
            right = takewhile(lambda one: one.was_first, tried[at : at + best])
            at += 1 + len(list(right))
        return replace(
            self,
            chances=chances,
            rounds=self.rounds + rounds,
            claimed=self.claimed + claimed,
            plain_tokens=self.plain_tokens + spent_s / self.plain_s,
        )

    def observe_free_rehearsal(self, found: Sequence[Rehearsed], margin: float) -> Experience:
        """The value after a rehearsal of a free drafter on the text; the same value unless its
        guesses were `margin` times as fast as none, as it says little about a draft model."""
        after = self.observe_rehearsal(found)
        return after if after.proven_rate * after.plain_s > margin else self

    def observe(self, outcome: RoundOutcome) -> Experience:
        """The value after a round."""
        report = PassReport(
            wall_s=outcome.pass_s,
            stall_s=outcome.stall_s,
            choice_stall_s=outcome.choice_stall_s,
            first_row_stall_s=outcome.first_row_stall_s,
            read_s=outcome.read_s,
        )
        after = replace(
            self,
            curve=self.curve.with_pass(outcome.n_rows, report, outcome.steps_beside > 0),
            rounds=FADE * self.rounds,
            claimed=FADE * self.claimed,
            plain_tokens=FADE * self.plain_tokens,
        )
        return after._after_guesses(outcome) if outcome.guessed else after._after_none(outcome)

    def _after_none(self, outcome: RoundOutcome) -> Experience:
        rest_s = max(0.0, outcome.wall_s - outcome.pass_s - outcome.draft_s)
        after = replace(
            self,
            seen_plain_overhead_s=self._mean(self.seen_plain_overhead_s, rest_s),
            chances=self.chances.faded(FADE),
        )
        return after.observe_rehearsal(outcome.rehearsed) if outcome.rehearsed else after

    def _after_guesses(self, outcome: RoundOutcome) -> Experience:
        chances = self.chances
        for node in outcome.path_nodes:
            chances = chances.with_node(node)
        steps, beside = outcome.draft_steps, outcome.steps_beside
        step_s, overhead_s = self.seen_step_s, self.seen_overhead_s
        if outcome.reading_s <= max(outcome.growing_s, self.step_s):  # the draft's caches are warm
            rest_s = outcome.wall_s - outcome.growing_s - outcome.reading_s - outcome.pass_s
            overhead_s = self._mean(overhead_s, max(0.0, rest_s))
            if steps:
                step_s = self._mean(step_s, outcome.growing_s / steps, self.step_s)
        kept = outcome.provisional_kept / max(1, outcome.provisional_drafted)
        return replace(
            self,
            chances=chances,
            seen_step_s=step_s,
            seen_overhead_s=overhead_s,
            kept_s=0.5 * self.kept_s + 0.5 * beside * kept * self.curve.slowdown * step_s,
            rounds=self.rounds + outcome.n_texts,
            claimed=self.claimed + outcome.expected / self.chances.calibration,
            plain_tokens=self.plain_tokens + outcome.expected_s / self.plain_s,
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
        known = self.chances
        (h0, h1), (w0, w1), (t0, t1) = known.hits, known.wide_hits, known.tries
        return {
            **self.curve.state_dict(),
            "step_s": self.seen_step_s,
            "overhead_s": self.seen_overhead_s,
            "plain_overhead_s": self.seen_plain_overhead_s,
            "token_read_s": self.seen_token_read_s,
            "rounds": self.rounds,
            "claimed": self.claimed,
            "plain tokens": self.plain_tokens,
            "hits": h0,
            "sure hits": h1,
            "tries": t0,
            "sure tries": t1,
            "wide hits": w0,
            "sure wide hits": w1,
            "claimed tries": known.claimed,
        }

    def load_state_dict(self, numbers: Numbers) -> Experience:
        """The value with the state of an earlier run, which counts for at most `MAX_RECALLED`
        rounds; invalid numbers are ignored."""

        def seconds(name: str) -> float:
            return within(numbers, name, MAX_S)

        after = replace(
            self,
            curve=self.curve.load_state_dict(numbers),
            seen_step_s=self.seen_step_s or seconds("step_s"),
            seen_overhead_s=self.seen_overhead_s or seconds("overhead_s"),
            seen_plain_overhead_s=self.seen_plain_overhead_s or seconds("plain_overhead_s"),
            seen_token_read_s=self.seen_token_read_s or seconds("token_read_s"),
        )
        if self.rounds or self.chances.claimed:
            return after
        tries = within(numbers, "tries", 1e3), within(numbers, "sure tries", 1e3)
        hits = within(numbers, "hits", tries[0]), within(numbers, "sure hits", tries[1])
        wide = (
            within(numbers, "wide hits", tries[0], hits[0]),
            within(numbers, "sure wide hits", tries[1], hits[1]),
        )
        claimed = within(numbers, "claimed tries", sum(tries))
        kept = min(1.0, MAX_RECALLED / max(sum(tries), 1e-9))
        plain_tokens = within(numbers, "plain tokens", 1e4)
        rounds = within(numbers, "rounds", 1e3) if plain_tokens else 0.0
        kept_rounds = min(1.0, MAX_RECALLED / max(rounds, 1e-9))
        return replace(
            after,
            chances=Chances(hits, wide, tries, claimed).faded(kept),
            rounds=kept_rounds * rounds,
            claimed=kept_rounds * within(numbers, "claimed", 1e3 * max(rounds, 1e-9)),
            plain_tokens=kept_rounds * plain_tokens,
        )
