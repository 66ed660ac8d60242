"""How a round guesses: with a tree, with a line, or not at all.

A value that is told what every round cost and brought, and answers with its successor. It reads no
clock, and knows no model: the engine does what it says and measures.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from enum import Enum
from typing import ClassVar

from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import RoundOutcome


class Strategy(Enum):
    """How a round guesses."""

    TREE = "tree"
    LINE = "line"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RoundRate:
    """What rounds of one strategy cost and brought of late: old ones fade with every new one."""

    fade: ClassVar[float] = 0.95

    seconds: float = 0.0
    tokens: float = 0.0
    rounds: float = 0.0
    seconds_squared: float = 0.0
    seconds_tokens: float = 0.0
    tokens_squared: float = 0.0

    def with_round(self, seconds: float, tokens: int) -> RoundRate:
        kept = self.fade
        return RoundRate(
            kept * self.seconds + seconds,
            kept * self.tokens + tokens,
            kept * self.rounds + 1,
            kept * self.seconds_squared + seconds * seconds,
            kept * self.seconds_tokens + seconds * tokens,
            kept * self.tokens_squared + tokens * tokens,
        )

    def faded(self, kept: float) -> RoundRate:
        return RoundRate(*(kept * total for total in astuple(self)))

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens if self.tokens else math.inf

    @property
    def error(self) -> float:
        """The standard error of `seconds_per_token`, a ratio of two sums."""
        if self.rounds <= 1:
            return math.inf
        ratio = self.seconds_per_token
        squares = (
            self.seconds_squared
            - 2 * ratio * self.seconds_tokens
            + ratio * ratio * self.tokens_squared
        )
        return math.sqrt(max(0.0, squares) * self.rounds / (self.rounds - 1)) / self.tokens


@dataclass(frozen=True, slots=True)
class Trial:
    """One strategy: what is known of it, and the rounds until it is tried again."""

    strategy: Strategy
    wait: int
    rate: RoundRate = RoundRate()


@dataclass(frozen=True, slots=True)
class Controller:
    """Prefers the strategy whose tokens cost the fewest seconds, and measures the others to know.

    Now and then a short probe tries another one, and the two are compared. The more a probe has
    cost, the longer its strategy waits for the next: each costs `probe_share` of the time, whatever
    the models, or `share_of_all` if it could not say; a failed one also keeps the others waiting,
    so that all first probes together cost little. Only one that is cheaper by `margin`, and by more
    than its rounds differ among each other, becomes the preferred one, and only one that is dearer
    by more than that is given up at once: rounds that bring one to six tokens say little, so a
    probe that cannot say goes on, for as long as it costs little.
    """

    probe_share: ClassVar[float] = 0.01
    share_of_all: ClassVar[float] = 0.05
    doubt: ClassVar[float] = 1.5
    """Standard errors that a gain has to exceed."""
    doubt_of_guesses: ClassVar[float] = 0.75
    """To go without any, which is never slower, and from where they are soon tried again."""
    fair_probe: ClassVar[int] = 8
    """Rounds with guesses that may be told from luck."""
    longest_probe: ClassVar[int] = 16
    """Of one that is not cheaper."""
    longest_doubt: ClassVar[int] = 32
    """Of one that is cheaper, but not by more than its rounds differ."""
    patience: ClassVar[float] = 6.0
    """Rounds of the preferred strategy that a probe may cost while it cannot say."""
    patience_with_others: ClassVar[float] = 1.0
    """Where the preferred one guesses, too: there is less to gain."""
    cheap_draft: ClassVar[float] = 0.25
    """Of the target's size: a larger draft hardly pays for a target that is resident, for a step of
    it costs as large a part of a pass."""
    dear_wait: ClassVar[int] = 512
    shortest_wait: ClassVar[int] = 16
    longest_wait: ClassVar[int] = 4096
    margin: ClassVar[float] = 0.05
    probe_rounds: ClassVar[dict[Strategy, int]] = {
        Strategy.TREE: 4,
        Strategy.LINE: 4,
        Strategy.NONE: 3,
    }

    trials: tuple[Trial, ...]
    """The preferred one first."""
    probing: Strategy | None = None
    rounds_left: int = 0
    """Of the probe."""
    is_first_round: bool = True
    """The first round of a strategy pays for the change (the draft reads what it missed): it says
    nothing of the strategy's rate, but belongs to what a probe cost."""
    probe_s: float = 0.0
    probe_tokens: int = 0
    probe_length: int = 0
    """Of the probe so far."""

    @classmethod
    def for_paged_target(cls, *strategies: Strategy) -> Controller:
        """Begin with the first: a pass over storage is dear, and guesses cost little."""
        waits = (6 + cls.shortest_wait * n for n in range(len(strategies)))
        return cls(tuple(map(Trial, strategies, waits)))

    @classmethod
    def for_resident_target(cls, *strategies: Strategy, draft_share: float = 0.0) -> Controller:
        """Begin without a draft, which is never slower, and try the first of the others soon, where
        the draft is small: `draft_share` is its size as a share of the target's."""
        others = (strategy for strategy in strategies if strategy is not Strategy.NONE)
        first = 3 if draft_share < cls.cheap_draft else cls.dear_wait
        waits = (
            Trial(strategy, first + cls.shortest_wait * n) for n, strategy in enumerate(others)
        )
        return cls((Trial(Strategy.NONE, 0), *waits))

    def numbers(self) -> Numbers:
        """Which one is preferred, and for how long the others wait: what `recalled` understands."""
        waits = {f"{trial.strategy.value} waits": float(trial.wait) for trial in self.trials[1:]}
        return {f"{self.preferred.value} is best": 1.0, **waits}

    def recalled(self, numbers: Numbers) -> Controller:
        """This rule, gone on from where another run left off. What makes no sense is left out."""
        best = [t for t in self.trials if numbers.get(f"{t.strategy.value} is best", 0.0) > 0]
        if len(best) != 1:
            return self
        others = (
            replace(trial, wait=self._wait_recalled(numbers.get(f"{trial.strategy.value} waits")))
            for trial in self.trials
            if trial is not best[0]
        )
        return Controller((replace(best[0], wait=0), *others))

    @property
    def preferred(self) -> Strategy:
        return self.trials[0].strategy

    @property
    def strategy(self) -> Strategy:
        """How the next round guesses."""
        return self.probing or self.preferred

    def observe(
        self, seconds: float, tokens: int, is_free: bool = False, least_pass_s: float = 0.0
    ) -> Controller:
        """The rule after a round of the strategy that it asked for.

        `is_free` says that guessing cost the round nothing: to probe could only lose.
        `least_pass_s` is what its pass took at least, whatever it verified: a token without guesses
        costs no less, which need not be tried.
        """
        if is_free and self.probing is None and self.preferred is not Strategy.NONE:
            return self
        after = replace(self, is_first_round=False)
        if not self.is_first_round:
            rate = self._trial(self.strategy).rate.with_round(seconds, tokens)
            after = after._with(replace(self._trial(self.strategy), rate=rate))
        if self.probing is None:
            return after._left() or after._wait(least_pass_s)
        after = replace(
            after,
            rounds_left=self.rounds_left - 1,
            probe_s=self.probe_s + seconds,
            probe_tokens=self.probe_tokens + tokens,
            probe_length=self.probe_length + 1,
        )
        return after if after.rounds_left > 0 else after._judge(self.probing)

    def _wait_recalled(self, rounds: float | None) -> int:
        """A disk may be slower than in the run before: where guesses are worth beginning with, they
        are not left out for long because they once did not pay."""
        longest = self.longest_wait if self.preferred is Strategy.NONE else 4 * self.shortest_wait
        return int(min(longest, max(self.shortest_wait, rounds or 0.0)))

    def _trial(self, strategy: Strategy) -> Trial:
        return next(trial for trial in self.trials if trial.strategy is strategy)

    def _with(self, changed: Trial) -> Controller:
        trials = (changed if trial.strategy is changed.strategy else trial for trial in self.trials)
        return replace(self, trials=tuple(trials))

    def _left(self) -> Controller | None:
        """With no guesses any more, where their rounds have shown by now that a token without, as
        it was measured, is cheaper."""
        preferred, *others = self.trials
        for trial in others:
            if trial.strategy is Strategy.NONE and trial.rate.rounds > 1:
                gain = preferred.rate.seconds_per_token - trial.rate.seconds_per_token
                errors = math.hypot(trial.rate.error, preferred.rate.error)
                least = self.doubt_of_guesses * errors
                if gain > max(least, self.margin * preferred.rate.seconds_per_token):
                    return replace(self, is_first_round=True)._preferring(trial)
        return None

    def _wait(self, least_pass_s: float) -> Controller:
        """Come a round nearer to the other strategies' probes, and begin one that is due."""
        preferred, *others = self.trials
        is_beaten = 0 < preferred.rate.seconds_per_token < least_pass_s
        waiting = [
            replace(trial, wait=self.shortest_wait)
            if trial.wait <= 1 and trial.strategy is Strategy.NONE and is_beaten
            else replace(trial, wait=trial.wait - 1)
            for trial in others
        ]
        after = replace(self, trials=(preferred, *waiting))
        due = [trial for trial in waiting if trial.wait <= 0]
        if not due:
            return after
        # What an earlier probe measured still says something, and less than this one will.
        trial = due[0]
        return replace(
            after._with(replace(trial, rate=trial.rate.faded(0.25))),
            probing=trial.strategy,
            rounds_left=self.probe_rounds[trial.strategy],
            is_first_round=True,
            probe_s=0.0,
            probe_tokens=0,
            probe_length=0,
        )

    def _judge(self, probed: Strategy) -> Controller:
        """End a probe: stay with its strategy if that was cheaper, else go back; or go on with it
        where its rounds differ too much to tell."""
        trial, preferred = self._trial(probed), self.trials[0]
        usual = preferred.rate.seconds_per_token
        after = replace(self, probing=None, is_first_round=True)
        gain = usual - trial.rate.seconds_per_token
        excess_s = self.probe_s - self.probe_tokens * usual
        round_s = preferred.rate.seconds / max(preferred.rate.rounds, 1e-9)
        excess_rounds = max(0.0, excess_s / max(round_s, 1e-9))
        errors = trial.rate.error, preferred.rate.error
        if gain > self.margin * usual:
            if gain > self.doubt * math.hypot(*errors) or self.probe_length >= self.longest_doubt:
                return after._preferring(trial)
            # Where the preferred one's rounds are what differs, those to come will tell.
            if errors[0] < errors[1]:
                return after._with(replace(trial, wait=self.shortest_wait))
            return replace(self, rounds_left=1)
        guesses = preferred.strategy is not Strategy.NONE
        patience = self.patience_with_others if guesses else self.patience
        is_short = not guesses and self.probe_length < self.fair_probe
        is_unsure = -gain < self.doubt * trial.rate.error
        is_cheap = excess_rounds < patience and self.probe_length < self.longest_probe
        if (is_short or is_unsure) and is_cheap:
            return replace(self, rounds_left=1)
        waiting = (
            replace(other, wait=self._longer(other.wait, excess_rounds / self.share_of_all))
            for other in self.trials[1:]
        )
        share = self.share_of_all if is_unsure else self.probe_share
        wait = self._longer(self.shortest_wait, excess_rounds / share)
        return replace(after, trials=(preferred, *waiting))._with(replace(trial, wait=wait))

    def _preferring(self, best: Trial) -> Controller:
        others = (other for other in self.trials if other.strategy is not best.strategy)
        waiting = (replace(other, wait=self.shortest_wait * n) for n, other in enumerate(others, 1))
        return replace(self, trials=(best, *waiting))

    def _longer(self, wait: int, rounds: float) -> int:
        return max(wait, int(min(rounds, self.longest_wait)))


FREE_SHARE = 0.05


def drafting_is_free(outcome: RoundOutcome) -> bool:
    """Whether a round shows by itself that it was not slower for its draft.

    Its pass waited for storage, and not for what its nodes chose, so they were computed while reads
    went on, and the drafting that no pass hid was a small part of it. Every pass yields a token at
    least, as without a draft.
    """
    return (
        outcome.idle_s > FREE_SHARE * outcome.pass_s
        and outcome.draft_s < FREE_SHARE * outcome.wall_s
    )
