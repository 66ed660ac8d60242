"""The round planner: decides on drafting, tree size, nodes to verify, and overlap with the pass.

One mutable object, which rounds teach. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.state_store import Numbers, recall, state_of
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.credit import LATER_SHARE, LINE, START_TOKENS, Credit
from edgespec.engine.planning.pacer import most_probable
from edgespec.engine.planning.pass_curve import Floats, octave
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.engine.stop_rules import RoundSoFar, StopRule
from edgespec.engine.tree_limits import Limits
from edgespec.tree import TokenTree
from edgespec.values import PassReport

RISK_SHARE = 0.5
"""Share of what guesses may still cost a text that one round may."""
PRICES_STAND = 4
"""Rounds for which prices stand at which no line of guesses would pay, or the text cannot afford a
guess: deciding takes as long as a fiftieth of a small model's pass."""
KNOWN_STEPS = 4
"""Draft steps of a round that tell as much of its next ones as all earlier rounds do."""
MAX_RECALLED = 6.0
"""Most tokens that the state of an earlier run counts for."""
USUAL_SURENESS = 0.9
"""Confidence of guesses that are yet to be drafted, as far as drafted ones do not tell."""
MAX_LINE = 16
"""Longest line of guesses that is considered before any was drafted."""


class Point(NamedTuple):
    """One candidate round, from the current tree on."""

    n_rows: int
    """Rows to verify: the root and the most probable guesses."""
    n_steps: int
    """Further draft steps before the pass."""
    accepted: float
    """Expected number of accepted guesses."""
    seconds: float
    """Expected seconds of the further steps, the pass and the overhead."""


@dataclass(slots=True, eq=False)
class RoundPlanner:
    """Chooses the round with the most expected tokens per second.

    The candidates (`Point`) are no guesses, a line, and trees of any size, with or without drafting
    during the pass. Expected tokens follow from the confidences of the tree's nodes, which also
    tell of nodes yet to be drafted; seconds from the pass curve and the cost of draft steps.

    What a draft brings is found by trying it: a real tree early in a text, and after rounds that
    did not pay again after 2, 4, 8, ... rounds without guesses. What trying may cost a pair and a
    text is bounded (`Credit`).
    """

    horizons: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Candidate numbers of further draft steps."""

    costs: RoundCosts = field(default_factory=RoundCosts)
    credit: Credit = field(default_factory=Credit)
    stop_rule: StopRule | None = None
    """Decides when to verify, in place of the planner, which still decides whether to guess."""
    may_step_aside: bool = True
    """Allow rounds without guesses."""
    may_overlap: bool = True
    """Allow drafting during a pass."""
    max_rows: int = 64
    n_texts: int = 1
    """Texts in a pass; their trees are treated as one with a common root."""
    n_prompt_rows: int = 0
    """Rows of the pass that are prompt tokens, in addition to the trees."""
    lines: Limits | None = None
    """Limits of trees that are computed as one sequence per branch; None computes each node
    once."""
    timed_rows: tuple[int, ...] = ()
    """Rows of the passes that are timed before the first guess."""

    # Before a run

    def plan_score(self, tokens: Floats | None = None) -> Point:
        """The best round before any tree exists.

        `tokens` are the expected tokens of a text in rounds with 0, 1, 2, ... guesses, by default
        the typical ones (`theory.tree_tokens`).
        """
        if tokens is None:
            tokens = theory.tree_tokens(np.arange(self.max_rows, dtype=np.float64))
        known, n_guesses = self.costs, np.arange(len(tokens))
        seconds = known.curve.seconds(self.n_texts * (1 + n_guesses)) + n_guesses * known.step_s
        seconds += np.where(n_guesses, known.overhead_s, known.plain_overhead_s)
        best = int((tokens / np.maximum(seconds, 1e-9)).argmax())
        return Point(1 + best, best, float(tokens[best]) - 1, float(seconds[best]))

    # Before a round

    @property
    def rate(self) -> float:
        """Tokens per second of late, at least that without guesses."""
        return max(1.0, self.credit.speedup) / self.costs.plain_s()

    def choose(self) -> float:
        """The most seconds that guesses may cost in the next round; 0 if it has none.

        It guesses if the price of one row is reliable, guesses do not pause, the text can afford at
        least one of them, the best line would pay if it were right as often as usual, and what the
        draft has to read first takes less time than guesses will save.
        """
        if not self.may_step_aside:
            return math.inf
        known, credit, n_texts = self.costs, self.credit, self.n_texts
        if credit.pause_left or not known.is_sure:
            return 0.0
        plain_s, reading_s = known.plain_s(n_texts), known.reading_s(credit.unread)
        risk_s = credit.left * plain_s - reading_s
        row_s = known.curve.second(n_texts + 1) - known.curve.second(n_texts)
        one_guess_s = known.step_s + known.overhead_s + row_s
        if risk_s < one_guess_s:
            credit.pause_left = PRICES_STAND
            return 0.0
        n_most = max(0, min(MAX_LINE, self.max_rows // n_texts - 1))
        line = self.plan_score(np.cumsum(USUAL_SURENESS ** np.arange(1 + n_most)))
        if not line.n_steps:
            credit.pause_left = PRICES_STAND
            return 0.0
        promise = n_texts * (1 + line.accepted) * plain_s / line.seconds
        gain = 1 - 1 / credit.speedup if credit.pays else (1 - 1 / promise) / 2
        expected_tokens = min(credit.room, max(START_TOKENS * n_texts, credit.n_tokens))
        if reading_s > gain * expected_tokens * plain_s:
            return 0.0
        return max(RISK_SHARE * risk_s, one_guess_s, credit.proven * plain_s)

    def choose_free(self) -> float:
        """The most seconds that guesses which cost no draft step may cost in the next round, where
        others are not made: what unverified ones have proven to save; 0 if it has none."""
        known, credit = self.costs, self.credit
        if not self.may_step_aside or not known.is_sure:
            return 0.0
        risk_s = credit.proven * known.plain_s()
        if risk_s < known.overhead_s + known.curve.second(2) - known.curve.second(1):
            return 0.0
        credit.unread = 0  # the draft does not read
        return risk_s

    @property
    def _prompts_s(self) -> float:
        """Seconds that prompt rows add to a pass without guesses."""
        curve, n_texts = self.costs.curve, self.n_texts
        return curve.second(n_texts + self.n_prompt_rows) - curve.second(n_texts)

    def drafts_beside(self, n_rows: int) -> bool:
        """True if guesses have paid and a pass over `n_rows` waits for reads though drafting takes
        half of the cores."""
        is_proven = self.credit.pays or not self.may_step_aside
        curve = self.costs.curve
        waits = bool(2 * curve.compute_s(n_rows) < curve.read_s)  # with half of the cores
        return is_proven and self.may_overlap and waits

    # While a round's tree grows

    def grow_on(self, risk_s: float, so_far: RoundSoFar) -> bool:
        """True if another draft step is better than verifying now."""
        if not so_far.open_nodes:
            return False
        if self.stop_rule is not None:
            return not self.stop_rule.fires(so_far)
        if not self.costs.curve.is_known:
            return so_far.draft_steps < 1
        return self._best(risk_s, so_far, self.horizons).n_steps > 0

    def best(self, risk_s: float, so_far: RoundSoFar) -> Point:
        """The best point without further draft steps: how many nodes to verify."""
        if self.stop_rule is not None or not self.costs.curve.is_known:
            n_rows = len(so_far.tree)
            accepted = float(so_far.tree.cumulative[:n_rows].sum()) - 1
            return Point(n_rows, 0, accepted, self.costs.curve.second(n_rows))
        return self._best(risk_s, so_far, ())

    def min_confidence(self) -> float:
        """Least cumulative confidence of guesses that need no draft step: those that bring at least
        half of what their row costs."""
        if self.stop_rule is not None or not self.credit.rounds:
            return 0.0
        compute_s, n_rows = self.costs.curve.compute_s, self.max_rows
        row_s = (compute_s(n_rows) - compute_s(1)) / max(1, n_rows - 1)
        return float(0.5 * row_s * self.rate)

    def n_hidden(self, most: int | None = None) -> int:
        """Number of rows, up to `most`, whose compute time is hidden by the reads of a pass; 0
        before one was measured."""
        curve, rows = self.costs.curve, np.arange(1, (most or self.max_rows) + 1)
        return int(np.searchsorted(curve.compute_s(rows), curve.read_s, "right") * curve.is_known)

    def _best(self, risk_s: float, so_far: RoundSoFar, horizons: tuple[int, ...]) -> Point:
        """The best point from here on whose guesses cost at most `risk_s`, with no further step or
        as many as one of `horizons`."""
        tree, spent_s, known = so_far.tree, so_far.draft_s, self.costs
        n_grown = horizons[-1] * so_far.n_ends if horizons else 0
        order, rows = self._rows(tree, n_grown)
        ranked = tree.cumulative[order]
        expected = np.cumsum(ranked) - 1.0
        n_other_rows = self.n_texts - 1 + self.n_prompt_rows
        max_rows = min(self.max_rows, self.n_texts * known.curve.experts.max_rows)
        most = max(1, min(max_rows - n_other_rows, len(rows)))
        rows = rows[:most] + n_other_rows
        pass_s = known.curve.seconds(rows) + known.overhead_s - self._prompts_s
        # steps of this round tell of the next ones, as the caches are as cold, and others as busy
        step_s = (KNOWN_STEPS * known.step_s + spent_s) / (KNOWN_STEPS + so_far.draft_steps)
        late, late_s = self.credit.tokens, self.credit.plain_tokens * known.plain_s(self.n_texts)
        best, best_value = Point(1, 0, 0.0, float(pass_s[0])), -math.inf

        def consider(n_steps: int, accepted: NDArray[np.float64], first_row: int) -> None:
            nonlocal best, best_value
            steps_s = -(-n_steps // so_far.step_depth) * step_s
            seconds = pass_s[first_row - 1 : first_row - 1 + len(accepted)] + steps_s
            values = (late + self.n_texts + accepted) / np.maximum(late_s + spent_s + seconds, 1e-9)
            if tree.draws:  # drawn guesses must all be verified
                values[: len(order) + n_steps - first_row] = -math.inf
            at_risk_s = seconds - pass_s[0]
            values[at_risk_s > max(0.0, risk_s - spent_s)] = -math.inf
            at = len(values) - 1 - int(values[::-1].argmax())
            if values[at] > best_value + 1e-12:
                best_value = float(values[at])
                best = Point(first_row + at, n_steps, float(accepted[at]), float(seconds[at]))

        consider(0, expected[:most], 1)
        if horizons and so_far.open_nodes:
            open_nodes = list(so_far.open_nodes)
            best_first = np.argsort(-tree.cumulative[open_nodes], kind="stable")
            ends = [open_nodes[n] for n in best_first[: so_far.n_ends]]
            rank = int((ranked >= tree.cumulative[ends[0]]).sum())
            # a further guess is as sure as those before it, and two that are as sure as usual
            chances, longest = tree.cumulative[ends], np.arange(1, horizons[-1] + 1)
            sureness = (USUAL_SURENESS**2 * chances) ** (1 / (2 + tree.depth[ends]))
            line = chances @ np.cumsum(sureness[:, None] ** longest, axis=1)
            for n_steps in horizons:
                n_rows = n_steps * len(ends)
                end = most - n_rows
                if end >= rank:
                    consider(n_steps, expected[rank - 1 : end] + line[n_steps - 1], rank + n_rows)
        return best

    def _rows(self, tree: TokenTree, n_grown: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes in descending order of probability, and the rows of passes over the first 1, 2, ...
        of them and over up to `n_grown` further nodes."""
        order = np.argsort(-tree.cumulative[: len(tree)], kind="stable")
        rows, n_lines = np.arange(1, len(tree) + 1), 1
        if self.lines is not None:  # another level makes all lines longer
            order, rows = np.array(most_probable(tree, self.lines)).T
            n_lines = tree.branch_count(order.tolist())
        return order, np.append(rows, rows[-1] + n_lines * np.arange(1, n_grown + 1))

    # Texts

    def serve(self, n_texts: int, n_unread: int, room: int) -> None:
        """Plan for `n_texts` with `n_unread` tokens that no drafter has read and at most `room`
        tokens to come, in total."""
        self.share_pass(n_texts)
        self.credit.unread, self.credit.room = n_unread, room

    def share_pass(self, n_texts: int, n_prompt_rows: int = 0, max_nodes: int = 0) -> None:
        """Plan for passes over `n_texts` trees, of up to `max_nodes` nodes if that is known, and
        `n_prompt_rows` rows of prompts."""
        if n_texts > self.n_texts:  # rounds of fewer texts were shorter
            self.credit.fade(0.0)
        self.n_texts, self.n_prompt_rows = n_texts, n_prompt_rows
        if max_nodes:
            self.max_rows = max_nodes + n_prompt_rows

    # What rounds teach

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from the target's reading of a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        self.costs.see_prompt(report, n_context)
        n_tokens = report.wall_s / self.costs.plain_s(self.n_texts)
        self.credit.grant(n_tokens, beside=n_context is None)
        self.credit.lost -= LATER_SHARE * n_tokens

    def untimed(self, most: int) -> list[tuple[int, float]]:
        """Rows of passes that are worth timing before the first guess, up to `most`, with
        expected seconds: those of `timed_rows` that neither this run nor an earlier one knows."""
        curve = self.costs.curve
        unknown = (n for n in self.timed_rows if n <= most and not curve.knot_rows[octave(n)])
        return [(n, curve.second(n)) for n in unknown]

    def see_reading(self, seconds: float) -> None:
        """Learn from the draft's reading of its unread tokens."""
        known, credit = self.costs, self.credit
        known.see_reading(credit.unread, seconds)
        # what other processes hold up is not charged to guesses
        charged_s = min(seconds, known.reading_s(credit.unread))
        credit.lost += charged_s / known.plain_s(self.n_texts)
        credit.unread = 0

    def see_round(self, outcome: RoundOutcome) -> None:
        """Learn from a round."""
        known, credit = self.costs, self.credit
        known.see_costs(outcome)
        if not outcome.guessed:
            credit.fade()
            credit.pause_left = max(0, credit.pause_left - 1)
        else:
            self.see_reading(outcome.reading_s)
            # half of what came, which chance moves, and half of what was to be expected
            tokens = (outcome.n_tokens + outcome.n_texts + outcome.expected) / 2
            cost = self._cost(outcome)
            credit.see_guesses(tokens, cost)
            credit.lost += cost - outcome.n_tokens
            if self.stop_rule is not None:
                for told in outcome.feedback:
                    self.stop_rule = self.stop_rule.observe(told)
        if outcome.surest and outcome.n_texts == 1:
            line_s = known.curve.second(1 + LINE) - known.curve.second(1)
            for is_right in outcome.surest:
                credit.follow_line(is_right, line_s / LINE / known.plain_s())
        credit.n_tokens += outcome.n_tokens
        credit.lost -= LATER_SHARE * outcome.n_tokens

    def _cost(self, outcome: RoundOutcome) -> float:
        """Tokens without guesses in the time of a round with guesses, without what other processes
        held up."""
        known, report, experts = self.costs, outcome.report, self.costs.curve.experts
        token_s = known.plain_s(outcome.n_texts)
        pass_s = known.curve.second(outcome.n_rows) - self._prompts_s
        if report.first_row_stall_s is not None:
            pass_s += report.choice_stall_s - experts.seconds(outcome.n_rows)
            if outcome.n_texts == 1:
                # predictable tokens use experts that are in memory more often than others
                token_s += report.first_row_stall_s - experts.seconds(1)
        steps_s = min(outcome.growing_s, outcome.draft_steps * known.step_s)
        seconds = min(pass_s, report.wall_s) + steps_s + known.overhead_s
        return float(seconds / max(token_s, 1e-9))

    # What is remembered

    def keep(self) -> None:
        """Store what was learnt, in a planner that does."""

    def state(self) -> dict[str, float]:
        """State for `restore`, by names of fields."""
        known, credit = self.costs, self.credit
        numbers = state_of(known, known.curve, known.curve.experts, credit)
        return numbers | {"spent": credit.spent_now}

    def restore(self, numbers: Numbers) -> None:
        """Take the state of an earlier run, before the first round; invalid numbers are ignored."""
        if numbers:
            known, credit = self.costs, self.credit
            known.curve.restore(numbers)
            recall(numbers, known, credit)
            credit.fade(min(1.0, MAX_RECALLED / max(credit.plain_tokens, 1e-9)))
