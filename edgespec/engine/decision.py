"""The plan of a round: guesses or none, depth of drafting, nodes to verify, overlap with the pass.

A frozen value that plans a round, decides while its tree grows, and answers each round with its
successor. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import Reached, Rehearsed, RoundOutcome
from edgespec.engine.pass_curve import LONGEST_S, PassCurve, within
from edgespec.engine.stop_rules import RoundSoFar, StopRule
from edgespec.values import PassReport

CREDIT_SHARE = 0.02
"""Share of the time without guesses that trying guesses may cost a text."""
PROMISED_TOKENS = 32
"""Texts of so many tokens and more are not slower for being guessed at: they have their credit from
the start."""
TRIAL_SHARE = 0.3
"""Share of the credit that one round may cost: one round says little."""
LONGEST_REHEARSAL = 16
"""Tokens of the text on which a draft is tried at once."""
FADE = 0.95
"""Kept of what was learnt, a round."""
MOST_RECALLED = 6.0
"""Rounds and tries of another run that count."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Hit rates of guesses after accepted nodes."""

    sure: ClassVar[float] = 0.9
    fade: ClassVar[float] = 0.95

    hits: tuple[float, float] = (0.0, 0.0)
    """After nodes that were not sure, and after sure ones."""
    tries: tuple[float, float] = (0.0, 0.0)
    claimed: float = 0.0
    """Sum of the confidences that all of them had."""

    def with_reached(self, reached: Reached) -> Chances:
        kind, kept = int(reached.is_sure), self.faded(self.fade)
        hits, tries = list(kept.hits), list(kept.tries)
        hits[kind] += reached.was_right
        tries[kind] += 1
        return Chances(tuple(hits), tuple(tries), kept.claimed + reached.claimed)  # type: ignore[arg-type]

    def faded(self, kept: float) -> Chances:
        (h0, h1), (t0, t1) = self.hits, self.tries
        return Chances((kept * h0, kept * h1), (kept * t0, kept * t1), kept * self.claimed)

    @property
    def honesty(self) -> float:
        """Ratio of hits to claimed tokens; 1 before anything was seen."""
        return (sum(self.hits) + 1) / (self.claimed + 1)

    @property
    def proven_honesty(self) -> float:
        """Ratio of observed hits to claimed tokens; 0 before anything was seen."""
        return sum(self.hits) / (self.claimed + 1)

    def line(self, confidence: float, length: int) -> list[float]:
        """Chances of 1, 2, ... nodes in a line below a node of this confidence, if it stands."""
        chances, stands = [], 1.0
        for _ in range(length):
            confidence = self._next(confidence)
            stands *= confidence
            chances.append(stands)
        return chances

    def _next(self, confidence: float) -> float:
        kind = int(confidence >= self.sure)
        usual = (sum(self.hits) + 1.8) / (sum(self.tries) + 2)
        return (self.hits[kind] + usual) / (self.tries[kind] + 1)


class Point(NamedTuple):
    """One possible round."""

    n_rows: int
    n_steps: int
    """Draft steps yet to be made."""
    claimed: float
    """Guesses that stand if confidences are right."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Limits of one round."""

    guesses: bool
    credit_s: float = math.inf
    """Most seconds that the round may lose by guesses that have not been shown to pay."""
    rate: float = 0.0
    """Tokens a second of the best rounds of late: what a second is worth."""
    plain_s: float = 0.0
    """Seconds of a token without guesses."""
    rehearses: int = 0
    """Tokens of the text that the draft is tried on before the round."""


@dataclass(frozen=True, slots=True)
class RoundPlanner:
    """Chooses the round with the most expected tokens a second.

    No guesses, a line, a tree of any size and drafting beside the pass are points of one choice,
    all looked at together: a point's tokens follow from the calibrated confidences of the nodes
    that hang and the chances of those that would, its seconds from the curve of passes and from
    what drafting takes. Among rounds of different sizes the best has the largest tokens - rate x
    seconds, where rate is that of the best rounds of late (Dinkelbach, 1967).

    A point is allowed if it pays by what guesses have been shown to be worth, or if the text's
    credit covers all that it could lose (a conservative bandit: Wu et al., arXiv 1602.04282). The
    credit grows by a share of the time, and by what guesses have saved.
    """

    horizons: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Numbers of further draft steps that are looked at."""
    worth_growing: ClassVar[float] = 0.5
    """Share of what a node's row costs that its chance must be worth to be hung for nothing."""

    curve: PassCurve = field(default_factory=PassCurve)
    chances: Chances = field(default_factory=Chances)
    stop_rule: StopRule | None = None
    """Decides when to verify, in place of this value; whether to guess at all, it does not."""
    may_step_aside: bool = True
    may_overlap: bool = True
    draft_share: float = 0.0
    """The draft's size as a share of the target's: the first guess of what a step takes."""
    max_rows: int = 64

    step_s: float = 0.0
    """Seconds of a draft step; 0 before one was seen."""
    token_read_s: float = 0.0
    """Seconds in which the draft reads a token of the text; 0 before it did."""
    prompt_token_s: float = 0.0
    """Seconds in which the target read a token of the prompt."""
    overhead_s: float = 0.0
    """Seconds of a round with guesses besides steps and pass."""
    plain_overhead_s: float = 0.0
    """Seconds of a round without guesses besides its pass."""
    rounds: float = 0.0
    claimed: float = 0.0
    seconds: float = 0.0
    """Fading sums over the best points of rounds that drafted."""
    kept_s: float = 0.0
    """Seconds of drafting that growth beside a pass saves the next round."""

    unread: int = 0
    """Committed tokens that the draft has not read."""
    n_tokens: int = 0
    room: int = 0
    """Tokens of this text so far, and those that may follow."""
    prompt_s: float = 0.0
    """Seconds in which the target read this text's prompt."""
    elapsed_s: float = 0.0
    saved_s: float = 0.0
    """Seconds of this text so far, and those that guesses have saved it."""

    # What is known before a round

    @property
    def plain_s(self) -> float:
        """Seconds of a token without guesses."""
        return self.curve.second(1) + self.plain_overhead_s

    @property
    def credit_s(self) -> float:
        earned_s = max(self.elapsed_s, min(PROMISED_TOKENS, self.room) * self.plain_s)
        return CREDIT_SHARE * earned_s + self.saved_s

    def plan(self) -> RoundPlan:
        """The plan of the next round."""
        plain_s = max(self.plain_s, 1e-9)
        plain_rate, guessing_rate = 1 / plain_s, self._guessing_rate(self.chances.honesty)
        expected = self.rounds + self.chances.honesty * self.claimed
        rate = max(plain_rate, (expected + 1) / (self.seconds + plain_s))
        free, none = RoundPlan(True, math.inf, rate, plain_s), RoundPlan(False, 0.0, rate, plain_s)
        if not self.may_step_aside:
            return free
        if not self.curve.is_known or guessing_rate <= plain_rate:
            return none
        read_s = self._reading_s
        unpaid_s = max(0.0, read_s - CREDIT_SHARE * self.prompt_s)
        proven = self.rounds + self.chances.proven_honesty * self.claimed
        if proven > plain_rate * self.seconds > 0:
            n_tokens = min(self.room, max(PROMISED_TOKENS, self.n_tokens))
            gained_s = n_tokens * (1 / plain_rate - self.seconds / proven)
            return free if gained_s > 2 * read_s else none
        credit_s = self.credit_s - unpaid_s
        if credit_s < self._step_s + self._overhead_s:
            return replace(none, rehearses=self._rehearsal)
        return replace(free, credit_s=max(TRIAL_SHARE * credit_s, self._step_s + self._overhead_s))

    @property
    def _rehearsal(self) -> int:
        """On how many tokens the credit lets the draft be tried, where reading all is too dear."""
        n_tokens = min(LONGEST_REHEARSAL, self.n_tokens)
        cost_s = max(self._step_s, n_tokens * self._token_read_s) + self._step_s
        is_paid = n_tokens >= PassCurve.shortest_prompt and cost_s <= self.credit_s
        return n_tokens if is_paid and self.unread > n_tokens else 0

    def _guessing_rate(self, honesty: float) -> float:
        """Tokens a second of rounds with guesses: those of late, and one on a line that is only
        imagined."""
        line = np.cumsum([0.0, *self.chances.line(0.0, self.horizons[-1])])
        steps = np.arange(len(line))
        seconds = self.curve.seconds(1 + steps) + steps * self._step_s + self._overhead_s
        tokens = self.rounds + honesty * self.claimed + 1 + line
        return float((tokens / np.maximum(self.seconds + seconds, 1e-9))[1:].max())

    def drafts_beside(self, n_rows: int) -> bool:
        """True if drafting beside a pass over `n_rows` saves more than it takes."""
        return bool(self._saved_beside_s(np.array([n_rows]))[0] >= 0)

    def _saved_beside_s(self, n_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds that drafting beside passes saves; negative where it makes them longer."""
        if not self.may_overlap or not self.curve.read_s:
            return np.full(len(n_rows), -math.inf)
        longer_s = self.curve.seconds(n_rows, beside=True) - self.curve.seconds(n_rows)
        return self.kept_s - longer_s

    @property
    def _step_s(self) -> float:
        return self.step_s or self.draft_share * float(self.curve.compute_s(np.ones(1))[0])

    @property
    def _overhead_s(self) -> float:
        return self.overhead_s or self._step_s

    @property
    def _reading_s(self) -> float:
        """Seconds in which the draft would read what it has not read."""
        return max(self.unread * self._token_read_s, self._step_s) if self.unread else 0.0

    @property
    def _token_read_s(self) -> float:
        return self.token_read_s or self.draft_share * self.prompt_token_s

    # While a round's tree grows

    def grows_on(self, plan: RoundPlan, so_far: RoundSoFar) -> bool:
        """True if one more draft step is better than verifying now."""
        if not so_far.open_nodes:
            return False
        if self.stop_rule is not None:
            return not self.stop_rule.fires(so_far)
        if not self.curve.is_known:
            return so_far.draft_steps < 1
        if math.isfinite(plan.credit_s) and so_far.draft_s + self._step_s > plan.credit_s:
            return so_far.draft_steps < 1
        return self.imagined(plan, so_far).n_steps > 0

    def best(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best number of the tree's nodes to verify, the most probable first."""
        if self.stop_rule is not None or not self.curve.is_known:
            n_rows = len(so_far.tree)
            claimed = float(so_far.tree.cumulative[:n_rows].sum()) - 1
            return Point(n_rows, 0, claimed, self.curve.second(n_rows))
        return self._best(plan, so_far, ())

    def imagined(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best point from here on, whatever the credit is."""
        return self._best(replace(plan, credit_s=math.inf), so_far, self.horizons)

    def least_confidence(self, plan: RoundPlan) -> float:
        """Nodes that are less probable are not hung though guessing them costs nothing."""
        if self.stop_rule is not None or not self.rounds:
            return 0.0
        first, last = self.curve.compute_s(np.array([1, self.max_rows]))
        row_s = (last - first) / max(1, self.max_rows - 1)
        return float(self.worth_growing * row_s * plan.rate)

    @property
    def n_hidden(self) -> int:
        """Rows that a pass computes while it reads."""
        compute_s = self.curve.compute_s(np.arange(1, self.max_rows + 1))
        return int(np.searchsorted(compute_s, self.curve.read_s, side="right"))

    def _best(self, plan: RoundPlan, so_far: RoundSoFar, horizons: tuple[int, ...]) -> Point:
        """The best point that can be reached from here within `plan`."""
        tree, spent_s = so_far.tree, so_far.draft_s
        n_nodes = len(tree)
        ranked = np.sort(tree.cumulative[:n_nodes])[::-1]
        claimed = np.cumsum(ranked) - 1.0
        most = min(self.max_rows, n_nodes + (horizons[-1] if horizons else 0))
        rows = np.arange(1, most + 1)
        pass_s = self.curve.seconds(rows) + self._overhead_s
        pass_s -= np.maximum(0.0, self._saved_beside_s(rows))
        honesty, rate = self.chances.honesty, plan.rate
        proven, plain_s = self.chances.proven_honesty, plan.plain_s
        best, best_value = Point(1, 0, 0.0, float(pass_s[0])), -math.inf

        def look(n_steps: int, claims: NDArray[np.float64], first_row: int) -> None:
            nonlocal best, best_value
            seconds = pass_s[first_row - 1 : first_row - 1 + len(claims)] + n_steps * self._step_s
            values = honesty * claims - rate * seconds
            if plan.credit_s != math.inf:
                is_proven = 1 + proven * claims >= seconds / plain_s
                is_covered = seconds - pass_s[0] <= max(0.0, plan.credit_s - spent_s)
                values = np.where(is_proven | is_covered, values, -math.inf)
            at = len(values) - 1 - int(values[::-1].argmax())
            if values[at] > best_value + 1e-12:
                best_value = float(values[at])
                best = Point(first_row + at, n_steps, float(claims[at]), float(seconds[at]))

        look(0, claimed[:most], 1)
        if horizons and so_far.open_nodes:
            open_nodes = list(so_far.open_nodes)
            node = open_nodes[int(tree.cumulative[open_nodes].argmax())]
            C = float(tree.cumulative[node])
            rank = int((ranked >= C).sum())
            line = C * np.cumsum(self.chances.line(float(tree.confidence[node]), horizons[-1]))
            for n_steps in horizons:
                end = most - n_steps
                if end >= rank:
                    look(n_steps, claimed[rank - 1 : end] + line[n_steps - 1], rank + n_steps)
        return best

    # What is learnt

    def begin_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The value for a new text of at most `room` tokens; the draft has not read `n_unread`."""
        return replace(
            self, unread=n_unread, room=room, n_tokens=0, prompt_s=0.0, elapsed_s=0.0, saved_s=0.0
        )

    def observe_prompt(self, report: PassReport) -> RoundPlanner:
        """The value after the target read a prompt."""
        return replace(
            self,
            curve=self.curve.with_prompt(report),
            prompt_s=report.wall_s,
            prompt_token_s=report.wall_s / max(1, report.n_tokens),
        )

    def observe_reading(self, seconds: float) -> RoundPlanner:
        """The value after the draft read what it had not read, before a round."""
        if not self.unread:
            return self
        unpaid_s = max(0.0, seconds - CREDIT_SHARE * self.prompt_s)
        return replace(self._with_reading(seconds), unread=0, saved_s=self.saved_s - unpaid_s)

    def observe_rehearsal(self, tried: Sequence[Rehearsed], seconds: float) -> RoundPlanner:
        """The value after the draft was tried on the text: as if it had drafted lines there, each
        as long as its confidences make worth while."""
        chances, rounds, claimed, spent_s = self.chances, 0, 0.0, 0.0
        is_sure = False
        for one in tried:
            chances = chances.with_reached(Reached(is_sure, one.claimed, one.was_right))
            is_sure = one.was_first and one.confidence >= Chances.sure
        plan, at = self.plan(), 0
        while at < len(tried):
            line = np.array([one.confidence for one in tried[at:]])
            claims = np.cumsum([0.0, *np.cumprod(line)])
            steps = np.arange(len(claims))
            pass_s = self.curve.seconds(1 + steps) + self._overhead_s + steps * self._step_s
            best = int((chances.honesty * claims - plan.rate * pass_s).argmax())
            rounds, claimed = rounds + 1, claimed + float(claims[best])
            spent_s += float(pass_s[best])
            stood = takewhile(lambda one: one.was_first, tried[at : at + best])
            at += 1 + len(list(stood))
        return replace(
            self,
            chances=chances,
            rounds=self.rounds + rounds,
            claimed=self.claimed + claimed,
            seconds=self.seconds + spent_s,
            saved_s=self.saved_s - seconds,
        )

    def observe(self, outcome: RoundOutcome) -> RoundPlanner:
        """The value after a round."""
        report = PassReport(
            wall_s=outcome.pass_s,
            stall_s=outcome.stall_s,
            choice_stall_s=outcome.choice_stall_s,
            read_s=outcome.read_s,
        )
        curve = self.curve.with_pass(1 + outcome.verified, report, outcome.steps_beside > 0)
        after = replace(
            self,
            curve=curve,
            n_tokens=self.n_tokens + outcome.n_tokens,
            room=max(0, self.room - outcome.n_tokens),
            elapsed_s=self.elapsed_s + outcome.wall_s,
            rounds=FADE * self.rounds,
            claimed=FADE * self.claimed,
            seconds=FADE * self.seconds,
        )
        return after._after_guesses(outcome) if outcome.guessed else after._after_none(outcome)

    def _after_none(self, outcome: RoundOutcome) -> RoundPlanner:
        after = replace(
            self,
            unread=self.unread + outcome.n_tokens,
            plain_overhead_s=_mean(
                self.plain_overhead_s, max(0.0, outcome.wall_s - outcome.pass_s - outcome.draft_s)
            ),
            chances=self.chances.faded(FADE),
        )
        if not outcome.rehearsed:
            return after
        return after.observe_rehearsal(outcome.rehearsed, outcome.reading_s)

    def _after_guesses(self, outcome: RoundOutcome) -> RoundPlanner:
        chances = self.chances
        for reached in outcome.reached:
            chances = chances.with_reached(reached)
        steps, beside = outcome.draft_steps, outcome.steps_beside
        step_s = _mean(self.step_s, outcome.growing_s / steps) if steps else self.step_s
        saved_steps = 0.2 * steps
        if beside:
            kept = outcome.provisional_kept / max(1, outcome.provisional_drafted)
            saved_steps = beside * kept
        spent_s = outcome.growing_s + outcome.reading_s + outcome.pass_s
        # a pass that other programs held up is not charged to its guesses
        pass_s = self.curve.second(1 + outcome.verified, beside=beside > 0)
        usual_s = outcome.wall_s - outcome.pass_s + min(outcome.pass_s, pass_s)
        rule = self.stop_rule.observe(outcome) if self.stop_rule is not None else None
        return replace(
            self._with_reading(outcome.reading_s) if outcome.reading_s else self,
            unread=0,
            saved_s=self.saved_s + outcome.n_tokens * self.plain_s - usual_s,
            chances=chances,
            stop_rule=rule,
            step_s=step_s,
            overhead_s=_mean(self.overhead_s, max(0.0, outcome.wall_s - spent_s)),
            kept_s=0.5 * self.kept_s + 0.5 * saved_steps * step_s,
            rounds=self.rounds + 1,
            claimed=self.claimed + outcome.claimed,
            seconds=self.seconds + outcome.expected_s,
        )

    def _with_reading(self, seconds: float) -> RoundPlanner:
        if self.unread < PassCurve.shortest_prompt:
            return self
        return replace(self, token_read_s=_mean(self.token_read_s, seconds / self.unread))

    # What is remembered

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        (h0, h1), (t0, t1) = self.chances.hits, self.chances.tries
        return {
            **self.curve.state_dict(),
            "step_s": self.step_s,
            "overhead_s": self.overhead_s,
            "plain_overhead_s": self.plain_overhead_s,
            "token_read_s": self.token_read_s,
            "rounds": self.rounds,
            "claimed": self.claimed,
            "seconds": self.seconds,
            "hits": h0,
            "sure hits": h1,
            "tries": t0,
            "sure tries": t1,
            "claimed tries": self.chances.claimed,
        }

    def load_state_dict(self, numbers: Numbers) -> RoundPlanner:
        """The value gone on from where another run left off, which counts for a few rounds: another
        text is soon more telling. Nonsense is ignored."""
        plain_overhead_s = within(numbers, "plain_overhead_s", LONGEST_S)
        after = replace(
            self,
            curve=self.curve.load_state_dict(numbers),
            step_s=self.step_s or within(numbers, "step_s", LONGEST_S),
            overhead_s=self.overhead_s or within(numbers, "overhead_s", LONGEST_S),
            plain_overhead_s=self.plain_overhead_s or plain_overhead_s,
            token_read_s=self.token_read_s or within(numbers, "token_read_s", LONGEST_S),
        )
        if self.rounds or self.chances.claimed:
            return after
        tries = within(numbers, "tries", 1e3), within(numbers, "sure tries", 1e3)
        hits = within(numbers, "hits", tries[0]), within(numbers, "sure hits", tries[1])
        claimed = within(numbers, "claimed tries", sum(tries))
        kept = min(1.0, MOST_RECALLED / max(sum(tries), 1e-9))
        rounds = within(numbers, "rounds", 1e3)
        kept_rounds = min(1.0, MOST_RECALLED / max(rounds, 1e-9))
        return replace(
            after,
            chances=Chances(hits, tries, claimed).faded(kept),
            rounds=kept_rounds * rounds,
            claimed=kept_rounds * within(numbers, "claimed", 1e3 * max(rounds, 1e-9)),
            seconds=kept_rounds * within(numbers, "seconds", LONGEST_S),
        )


def _mean(before: float, now: float) -> float:
    """A fading mean that begins with the first value."""
    return 0.8 * before + 0.2 * now if before else now
