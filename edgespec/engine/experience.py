"""Costs and yields of rounds, learnt from those that were measured, and the account of one text.

Frozen values that answer each round with their successor. They read no clock and call no model.
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
from edgespec.engine.outcome import Reached, Rehearsed, RoundOutcome
from edgespec.engine.pass_curve import LONGEST_S, PassCurve, within
from edgespec.values import PassReport

Floats = NDArray[np.float64]

CREDIT_SHARE = 0.02
"""Share of the time without guesses that trying guesses may cost a text."""
PROMISED_TOKENS = 32
"""Texts of so many tokens and more are not slower for being guessed at: they have their credit from
the start."""
SHORTEST_REHEARSAL, LONGEST_REHEARSAL = 8, 16
"""Tokens of the text on which a draft is tried at once."""
FOREIGN_SHARE = 0.25
"""Weight of tokens of the prompt as evidence of guesses after it."""
LONGEST_LINE = 16
"""Draft steps that are looked ahead."""
WIDTH = 3
"""Guesses for a token in trees whose rows cost little."""
FADE = 0.95
"""Kept of what was learnt, a round."""
MOST_RECALLED = 6.0
"""Rounds and tries of another run that count."""


@dataclass(frozen=True, slots=True)
class TextAccount:
    """Time and tokens of one text, and what guesses may still cost it."""

    unread: int = 0
    """Committed tokens that the draft has not read."""
    n_tokens: int = 0
    room: int = 0
    """Tokens of this text so far, and those that may follow."""
    n_tried: int = 0
    """Tokens of this text that there were when the draft was last tried on it."""
    prompt_s: float = 0.0
    """Seconds in which the target read this text's prompt."""
    elapsed_s: float = 0.0
    saved_s: float = 0.0
    """Seconds of this text so far, and those that guesses have saved it."""
    found: tuple[Rehearsed, ...] = ()
    """Success of a free drafter on the latest tokens, all of which came without guesses."""

    def credit_s(self, plain_s: float, n_texts: int = 1, share: float = CREDIT_SHARE) -> float:
        """Seconds that guesses may lose, where a token without guesses takes `plain_s` and they may
        take a share of the text's time."""
        earned_s = max(self.elapsed_s, min(PROMISED_TOKENS * n_texts, self.room) * plain_s)
        return share * earned_s + self.saved_s

    def with_reading(self, seconds: float) -> TextAccount:
        """The account after the draft read what it had not read, before a round."""
        return replace(self, unread=0, saved_s=self.saved_s - self.unpaid_s(seconds))

    def unpaid_s(self, reading_s: float) -> float:
        """Seconds of the draft's reading that the target's own reading does not pay for."""
        return max(0.0, reading_s - CREDIT_SHARE * self.prompt_s)

    def worth(self, share: float) -> TextAccount:
        """The account where what was saved is worth a share of it."""
        return replace(self, saved_s=min(self.saved_s, share * self.saved_s))

    def with_text(self, n_unread: int, room: int) -> TextAccount:
        """The account of several texts, one of which is new and reads its prompt now."""
        return replace(self, unread=n_unread, room=self.room + room)

    def _unread_after(self, outcome: RoundOutcome) -> int:
        """Tokens unread before a round's own: a rehearsal reads those that follow what was read."""
        n_tried = len(outcome.rehearsed) + 1
        return 0 if n_tried > 1 and self.unread <= n_tried else self.unread

    def with_round(self, outcome: RoundOutcome, saved_s: float) -> TextAccount:
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
    """Tokens and seconds of some rounds together."""

    tokens: float
    seconds: float

    def rate_with(self, tokens: Floats, seconds: Floats) -> Floats:
        """Tokens a second of these rounds and one more."""
        return (self.tokens + tokens) / np.maximum(self.seconds + seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Experience:
    """Costs of passes and draft steps, chances of guesses, and the yield of the best rounds."""

    curve: PassCurve = field(default_factory=PassCurve)
    chances: Chances = field(default_factory=Chances)
    draft_share: float = 0.0
    """The draft's size as a share of the target's: the first guess of what a step takes."""
    latency_s: float = 0.0
    """Seconds of a pass of the target spent on the way to other machines, as no draft step is."""

    seen_step_s: float = 0.0
    """Seconds of a draft step where the curve's slowness is 1, as of all that was seen; 0 before
    one was seen."""
    seen_token_read_s: float = 0.0
    """Seconds in which the draft reads a token of the text; 0 before it did."""
    prompt_token_s: float = 0.0
    """Seconds in which the target read a token of the prompt."""
    seen_overhead_s: float = 0.0
    """Seconds of a round with guesses besides steps and pass."""
    seen_plain_overhead_s: float = 0.0
    """Seconds of a round without guesses besides its pass."""
    rounds: float = 0.0
    claimed: float = 0.0
    plain_tokens: float = 0.0
    """Fading sums over the best points of rounds that drafted: their number, guesses claimed, and
    tokens that there would have been without guesses in the same time."""
    kept_s: float = 0.0
    """Seconds of drafting that growth beside a pass saves the next round."""

    @property
    def plain_s(self) -> float:
        """Seconds of a token without guesses."""
        return self.plain_s_of(1)

    def plain_s_of(self, n_texts: int) -> float:
        """Seconds of a token where so many texts get one in a pass, without guesses."""
        return max(1e-9, (self.curve.second(n_texts) + self.plain_overhead_s) / n_texts)

    @property
    def is_sure(self) -> bool:
        """True if what a pass over one row takes is known well enough to compare guesses with it,
        as it is where most of it is the way to another machine."""
        is_remote = self.curve.is_known and 2 * self.latency_s > self.curve.second(1)
        return is_remote or self.curve.is_sure

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        if self.seen_step_s:
            return self.curve.times * self.seen_step_s
        pass_s = float(self.curve.compute_s(np.ones(1))[0])
        return self.draft_share * self._without_latency(pass_s)

    def _without_latency(self, pass_s: float) -> float:
        """Seconds of a pass here, at least a tenth of it: latency varies."""
        return max(0.1 * pass_s, pass_s - self.latency_s)

    @property
    def overhead_s(self) -> float:
        """Seconds of a round with guesses besides steps and pass."""
        return self.curve.times * self.seen_overhead_s or self.step_s

    @property
    def plain_overhead_s(self) -> float:
        """Seconds of a round without guesses besides its pass."""
        return self.curve.times * self.seen_plain_overhead_s

    @property
    def seconds(self) -> float:
        """Seconds of the best rounds of late, as fast as the machine is now."""
        return self.plain_tokens * self.plain_s

    def reading_s(self, n_tokens: int) -> float:
        """Seconds in which the draft would read so many tokens."""
        token_s = self.curve.times * self.seen_token_read_s
        token_s = token_s or self.draft_share * self.prompt_token_s
        return max(n_tokens * token_s, self.step_s) if n_tokens else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of the best rounds of late: what a second is worth."""
        expected = self.rounds + self.chances.honesty * self.claimed
        plain_s = self.plain_s
        return max(1 / plain_s, (expected + 1) / (self.plain_tokens * plain_s + plain_s))

    def best_of_late(self) -> Yield:
        """Tokens and seconds of the best rounds of late."""
        return Yield(self.rounds + self.chances.honesty * self.claimed, self.seconds)

    def guessing_rate(self, n_texts: int, max_rows: int) -> float:
        """Tokens a second of the best rounds of late and one on lines that are only imagined."""
        tokens, seconds = self._lines(n_texts, max_rows, 1.0)
        return float(self.best_of_late().rate_with(tokens, seconds).max())

    def line_rate(self, n_texts: int, max_rows: int) -> float:
        """Tokens a second of lines of the best length and width by how often guesses were right in
        this text, whatever confidences they had."""
        tokens, seconds = self._lines(n_texts, max_rows, self.chances.proof)
        return float((tokens / np.maximum(seconds, 1e-9)).max())

    def _lines(self, n_texts: int, max_rows: int, share: float) -> tuple[Floats, Floats]:
        """Tokens and seconds of rounds on lines of 1, 2, ... guesses in each text, and on lines of
        several guesses for each token, of which a share is as often right as usual."""
        tokens, seconds = [], []
        for width in (1, WIDTH):
            steps = np.arange(1, max(2, min(LONGEST_LINE, (max_rows // n_texts - 1) // width) + 1))
            stands = self.chances.line(0.0, len(steps), is_wide=width > 1)
            tokens.append(n_texts * (1 + share * np.cumsum(stands)))
            seconds.append(self.guessing_s(steps, n_texts, width))
        return np.concatenate(tokens), np.concatenate(seconds)

    def guessing_s(self, n_steps: NDArray[np.int64], n_texts: int = 1, width: int = 1) -> Floats:
        """Seconds of rounds of so many draft steps, each of which hangs `width` nodes in every
        text."""
        pass_s = self.curve.seconds(n_texts * (1 + width * n_steps))
        return pass_s + n_steps * self.step_s + self.overhead_s

    @property
    def proven_rate(self) -> float:
        """Tokens a second of the best rounds of late by what guesses were worth in this text."""
        proven = self.rounds + self.chances.proof * self.chances.honesty * self.claimed
        return proven / self.seconds if self.seconds > 0 else 0.0

    # What is learnt

    def for_texts(self, before: int, now: int) -> Experience:
        """The value for passes of another number of texts. Guesses that paid among many pay among
        fewer, so the best rounds count as much faster than none as they were; of more texts they
        say nothing."""
        share = now / before if now < before else 0.0
        share_s = share * self.plain_s_of(now) / self.plain_s_of(before)
        return replace(
            self,
            rounds=share * self.rounds,
            claimed=share * self.claimed,
            plain_tokens=share_s * self.plain_tokens,
        )

    def observe_prompt(self, report: PassReport, n_context: int | None = None) -> Experience:
        """The value after the target read a prompt to the end of a text of `n_context` tokens; None
        where passes are over several texts."""
        passes = max(1, report.passes)
        wall_s = passes * self._without_latency(report.wall_s / passes)
        token_s = wall_s / max(1, report.n_tokens)
        return replace(
            self, curve=self.curve.with_prompt(report, n_context), prompt_token_s=token_s
        )

    def observe_reading(self, n_tokens: int, seconds: float) -> Experience:
        """The value after the draft read so many tokens."""
        if n_tokens < SHORTEST_REHEARSAL or not seconds:
            return self
        expected_s = self.reading_s(n_tokens) / n_tokens
        token_s = self._mean(self.seen_token_read_s, seconds / n_tokens, expected_s)
        return replace(self, seen_token_read_s=token_s)

    def observe_foreign(self, tried: Sequence[Rehearsed]) -> Experience:
        """The value after the draft was tried on a text that the target has not written: it says
        how honest the draft's confidences are, and little of how often it is right."""
        n_right = FOREIGN_SHARE * sum(one.was_right for one in tried)
        n_wrong = 0.5 * FOREIGN_SHARE * sum(one.claimed for one in tried if not one.was_right)
        return replace(self, chances=self.chances.with_honesty(n_right, n_right + n_wrong))

    def observe_rehearsal(self, tried: Sequence[Rehearsed]) -> Experience:
        """The value after the draft was tried on the text: as if it had drafted lines there, each
        as long as its confidences make worth while."""
        chances, rounds, claimed, spent_s = self.chances, 0, 0.0, 0.0
        is_sure = False
        for one in tried:
            chances = chances.with_reached(
                Reached(is_sure, one.claimed, one.was_right, one.was_first)
            )
            is_sure = one.was_first and one.confidence >= Chances.sure
        at = 0
        while at < len(tried):
            line = np.array([one.confidence for one in tried[at:]])
            honest = np.cumprod(np.minimum(1.0, chances.honesty * line))
            accepted = np.cumsum([0.0, *honest])
            steps = np.arange(len(accepted))
            round_s = self.guessing_s(steps)
            late = replace(self, chances=chances).best_of_late()
            best = int(late.rate_with(1 + accepted, round_s).argmax())
            rounds, claimed = rounds + 1, claimed + float(accepted[best]) / chances.honesty
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

    def observe_found(self, found: Sequence[Rehearsed], margin: float) -> Experience:
        """The value after a free drafter was tried on the text. It says something if its guesses
        would have been `margin` times as fast as none, else nothing of those of a model."""
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
        for reached in outcome.reached:
            chances = chances.with_reached(reached)
        steps, beside = outcome.draft_steps, outcome.steps_beside
        step_s, overhead_s = self.seen_step_s, self.seen_overhead_s
        if outcome.reading_s <= max(outcome.growing_s, self.step_s):  # its caches are warm
            rest_s = outcome.wall_s - outcome.growing_s - outcome.reading_s - outcome.pass_s
            overhead_s = self._mean(overhead_s, max(0.0, rest_s))
            if steps:
                step_s = self._mean(step_s, outcome.growing_s / steps, self.step_s)
        saved_steps = 0.2 * steps
        if beside:
            kept = outcome.provisional_kept / max(1, outcome.provisional_drafted)
            saved_steps = beside * kept
        return replace(
            self,
            chances=chances,
            seen_step_s=step_s,
            seen_overhead_s=overhead_s,
            kept_s=0.5 * self.kept_s + 0.5 * saved_steps * self.curve.times * step_s,
            rounds=self.rounds + outcome.n_texts,
            claimed=self.claimed + outcome.expected / self.chances.honesty,
            plain_tokens=self.plain_tokens + outcome.expected_s / self.plain_s,
        )

    def _mean(self, before: float, now_s: float, expected_s: float = 0.0) -> float:
        """A fading mean, where the slowness is 1. Other work makes things take longer, nothing
        makes them faster: what took longer moves it little, and a first value that took longer than
        `expected_s` counts half."""
        now = now_s / self.curve.times
        if not before:
            expected = expected_s / self.curve.times or now
            return min(now, math.sqrt(now * expected))
        share = 0.1 if now > before else 0.4
        return before + share * (min(now, PassCurve.largest_rise * before) - before)

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
        """The value gone on from where another run left off, which counts for a few rounds: another
        text is soon more telling. Nonsense is ignored."""

        def seconds(name: str) -> float:
            return within(numbers, name, LONGEST_S)

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
        kept = min(1.0, MOST_RECALLED / max(sum(tries), 1e-9))
        plain_tokens = within(numbers, "plain tokens", 1e4)
        rounds = within(numbers, "rounds", 1e3) if plain_tokens else 0.0
        kept_rounds = min(1.0, MOST_RECALLED / max(rounds, 1e-9))
        return replace(
            after,
            chances=Chances(hits, wide, tries, claimed).faded(kept),
            rounds=kept_rounds * rounds,
            claimed=kept_rounds * within(numbers, "claimed", 1e3 * max(rounds, 1e-9)),
            plain_tokens=kept_rounds * plain_tokens,
        )
