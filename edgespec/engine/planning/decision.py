"""The round planner: decides on drafting, tree size, nodes to verify, and overlap with the pass.

One mutable object, which rounds teach. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.state_store import Numbers, recall, state_of
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.credit import LATER_SHARE, LINE, START_TOKENS, Credit
from edgespec.engine.planning.pass_curve import Floats, octave
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.rules.pacer import most_probable
from edgespec.rules.stop_rules import RoundSoFar, StopRule
from edgespec.rules.tree_limits import Limits
from edgespec.tree import TokenTree
from edgespec.values import PassReport

RISK_SHARE = 0.5
"""Share of what guesses may still cost a text that one round may."""
PRICES_STAND = 8
"""Most rounds for which a decision against guesses stands: deciding takes as long as a fiftieth of
a small model's pass."""
KNOWN_STEPS = 4
"""Draft steps of a round that tell as much of its next ones as all earlier rounds do."""
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
        seconds = self._line_s(len(tokens))
        best = int((tokens / np.maximum(seconds, 1e-9)).argmax())
        return Point(1 + best, best, float(tokens[best]) - 1, float(seconds[best]))

    def _line_s(self, n_lines: int) -> Floats:
        """Seconds of rounds that draft a line of 0, 1, 2, ... guesses for each text."""
        known, n_guesses = self.costs, np.arange(n_lines)
        pass_s = known.curve.seconds(self.n_texts * (1 + n_guesses))
        rest_s = np.where(n_guesses, known.overhead_s, known.plain_overhead_s)
        return np.asarray(pass_s + n_guesses * known.step_s + rest_s)

    # Before a round

    @property
    def rate(self) -> float:
        """Tokens per second of late, at least that without guesses."""
        return max(1.0, self.credit.speedup) / self.costs.plain_s()

    def choose(self) -> float:
        """The most seconds that guesses may cost in the next round; 0 if it has none.

        It guesses if the price of one row is reliable, guesses do not pause and do without the
        draft, the text can afford a line that would pay if it were right as often as usual, and
        what the draft has to read first takes less time than guesses will save. A round risks the
        shortest such line, or more where more may be lost or guesses were right.
        """
        if not self.may_step_aside:
            return math.inf
        known, credit, n_texts = self.costs, self.credit, self.n_texts
        credit.is_free = credit.is_free and self._proven_s > 0
        if credit.pause_left or credit.is_free or not known.is_sure:
            return 0.0
        plain_s, reading_s = known.plain_s(n_texts), known.reading_s(credit.unread)
        n_lines = min(MAX_LINE, self.max_rows // n_texts)
        tokens = n_texts * np.cumsum(USUAL_SURENESS ** np.arange(max(1, n_lines)))
        seconds = self._line_s(len(tokens))
        promises, costs_s = tokens * plain_s / seconds, seconds - seconds[0]
        left_s = credit.left * plain_s - reading_s
        affordable = np.flatnonzero((promises > 1 + 1e-9) & (costs_s <= left_s))
        if not affordable.size:
            credit.pause_left = PRICES_STAND
            return 0.0
        gain = 1 - 1 / credit.speedup if credit.pays else (1 - 1 / promises.max()) / 2
        expected_tokens = min(credit.room, max(START_TOKENS * n_texts, credit.n_tokens))
        if reading_s > gain * expected_tokens * plain_s:
            return 0.0
        return float(max(RISK_SHARE * left_s, costs_s[affordable[0]], credit.proven * plain_s))

    def choose_free(self) -> float:
        """The most seconds that guesses which cost no draft step may cost in the next round, where
        others are not made: what unverified ones have proven to save; 0 if it has none."""
        risk_s = self._proven_s if self.may_step_aside else 0.0
        if risk_s:
            self.credit.is_free, self.credit.unread = True, 0  # the draft does not read
        return risk_s

    def rest(self) -> int:
        """Number of rounds without guesses for which the decision against them stands: one while
        guesses that are followed are right."""
        if not self.costs.is_sure or self.credit.n_right:
            return 1
        return min(PRICES_STAND, self.credit.pause_left or PRICES_STAND)

    @property
    def _proven_s(self) -> float:
        """Seconds that lines of the surest guesses would have saved; 0 if less than a row takes."""
        known = self.costs
        if not self.credit.proven or not known.is_sure:
            return 0.0
        proven_s = self.credit.proven * known.plain_s()
        row_s = known.curve.second(2) - known.curve.second(1)
        return proven_s if proven_s >= known.overhead_s + row_s else 0.0

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

    def most_nodes(self, risk_s: float) -> int:
        """Most nodes of a tree whose pass costs at most `risk_s` more than one over the root."""
        curve, n_others = self.costs.curve, self.n_texts - 1 + self.n_prompt_rows
        if not curve.is_known or math.isinf(risk_s):
            return self.max_rows
        more_s = curve.seconds(np.arange(1, self.max_rows + 1) + n_others)
        return max(1, int(np.searchsorted(more_s - more_s[0], risk_s, "right")))

    def n_hidden(self, most: int | None = None) -> int:
        """Number of rows, up to `most`, whose compute time is hidden by the reads of a pass; 0
        before one was measured."""
        curve, rows = self.costs.curve, np.arange(1, (most or self.max_rows) + 1)
        return int(np.searchsorted(curve.compute_s(rows), curve.read_s, "right") * curve.is_known)

    def _best(self, risk_s: float, so_far: RoundSoFar, horizons: tuple[int, ...]) -> Point:
        """The best point from here on whose guesses cost at most `risk_s`, with no further step or
        as many as one of `horizons`."""
        tree, spent_s, known = so_far.tree, so_far.draft_s, self.costs
        open_nodes = list(so_far.open_nodes) if horizons else []
        best_first = np.argsort(-tree.cumulative[open_nodes], kind="stable")
        ends = [open_nodes[n] for n in best_first[: so_far.n_ends]]
        # the grid of candidates: [further steps, rows]
        steps = np.array([*horizons[::-1], 0] if ends else [0])[:, np.newaxis]
        order, rows = self._rows(tree, len(ends) * int(steps[0, 0]))
        n_other_rows = self.n_texts - 1 + self.n_prompt_rows
        max_rows = min(self.max_rows, self.n_texts * known.curve.experts.max_rows) - n_other_rows
        n_rows = np.arange(1, 1 + max(1, min(max_rows, len(rows))))
        n_drafted = n_rows - len(ends) * steps

        ranked = tree.cumulative[order]
        # a further guess is as sure as those before it, and two that are as sure as usual
        chances, further = tree.cumulative[ends], np.arange(steps[0, 0] + 1)
        sureness = (USUAL_SURENESS**2 * chances) ** (1 / (2 + tree.depth[ends]))
        line = chances @ (np.cumsum(sureness[:, np.newaxis] ** further, axis=1) - 1.0)
        expected = np.cumsum(ranked) - 1.0
        accepted = expected[n_drafted.clip(1, len(order)) - 1] + line[steps]

        pass_s = known.curve.seconds(rows[: len(n_rows)] + n_other_rows) + known.overhead_s
        pass_s -= self._prompts_s
        # steps of this round tell of the next ones, as the caches are as cold, and others as busy
        step_s = (KNOWN_STEPS * known.step_s + spent_s) / (KNOWN_STEPS + so_far.draft_steps)
        seconds = pass_s - -steps // so_far.step_depth * step_s
        late, late_s = self.credit.tokens, self.credit.plain_tokens * known.plain_s(self.n_texts)
        values = (late + self.n_texts + accepted) / np.maximum(late_s + spent_s + seconds, 1e-9)

        # further guesses stand below the best end; drawn ones must all be verified
        rank = (ranked >= chances.max(initial=0.0)).sum()
        fewest = len(order) if tree.draws else np.where(steps, rank, 1)
        is_possible = (n_drafted >= fewest) & (n_drafted <= len(order))
        is_possible &= seconds - pass_s[0] <= max(0.0, risk_s - spent_s)
        values[~is_possible] = 0.0
        # of equally good ones the most rows with the fewest steps
        at = np.flatnonzero(values.ravel() >= values.max() - 1e-12)[-1]
        n_steps, n = int(steps[at // len(n_rows), 0]), int(at % len(n_rows))
        its_tokens, its_s = accepted.flat[at], seconds.flat[at]
        return Point(1 + n, n_steps, float(its_tokens), float(its_s))

    def _rows(self, tree: TokenTree, n_grown: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes in descending order of probability, and the rows of passes over the first 1, 2, ...
        of them and over up to `n_grown` further nodes."""
        order = np.argsort(-tree.cumulative[: len(tree)], kind="stable")
        rows, n_lines = np.arange(1, len(tree) + 1), 1
        if self.lines is not None:  # another level makes all lines longer
            limits = self.lines
            found = most_probable([tree], [limits], limits.max_nodes, limits.max_branches)
            _, order, rows = np.array(found).T
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

    def see_round(self, outcome: RoundOutcome, is_typical: bool = True) -> None:
        """Learn from a round; what it took counts if it is typical of those since the last
        decision."""
        known, credit = self.costs, self.credit
        if is_typical:
            known.see_costs(outcome)
        was_free = credit.is_free
        credit.is_free &= outcome.guessed and outcome.n_tokens > outcome.n_texts
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
            if was_free:
                credit.prove(outcome.n_tokens - cost)
        if outcome.n_texts == 1 and not was_free:
            self.follow(outcome.surest)
        credit.n_tokens += outcome.n_tokens
        credit.lost -= LATER_SHARE * outcome.n_tokens

    def follow(self, surest: Sequence[bool]) -> None:
        """Learn which of the surest guesses after each token were right, verified or not."""
        if surest:
            known = self.costs
            line_s = known.curve.second(1 + LINE) - known.curve.second(1)
            for is_right in surest:
                self.credit.follow_line(is_right, line_s / LINE / known.plain_s())

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
            self.costs.curve.restore(numbers)
            recall(numbers, self.costs, self.credit)
