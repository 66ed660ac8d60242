"""The round planner: decides on drafting, tree size, nodes to verify, and overlap with the pass.

A frozen value; each round returns its successor. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.account import TextAccount
from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.experience import FADE, Experience, Floats
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.pacer import Limits, most_probable
from edgespec.engine.stop_rules import RoundSoFar, StopRule
from edgespec.tree import TokenTree
from edgespec.values import PassReport

HIT_ROUNDS = 8
"""Rounds of a pause that a right guess counts for which cost nothing and was not verified."""
MAX_LINE = 16
"""Longest line of guesses that is considered before any was drafted."""
TRIAL_SHARE = 0.5
"""Share of what guesses may cost a text that one round may cost before guesses have paid."""


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


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Decision before a round: to guess or not, and at what risk."""

    guesses: bool
    risk_s: float = math.inf
    """Most seconds that the guesses may cost."""
    is_trial: bool = False
    """True if guesses have not paid yet."""


@dataclass(frozen=True, slots=True)
class RoundPlanner:
    """Chooses the round with the most expected tokens per second.

    The candidates (`Point`) are no guesses, a line, and trees of any size, with or without drafting
    during the pass. Expected tokens follow from the confidences of the tree's nodes and the hit
    rate of nodes yet to be drafted; seconds from the pass curve and the cost of draft steps.

    What a draft brings is found by trying it: a real tree early in a text, and after rounds that
    did not pay again after 2, 4, 8, ... rounds without guesses (`Payoff`). What trying may cost a
    text is bounded (`TextAccount`).
    """

    horizons: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Candidate numbers of further draft steps."""
    min_benefit_ratio: ClassVar[float] = 0.5
    """Least expected benefit of a guess that needs no draft step, relative to its row's cost."""

    experience: Experience = field(default_factory=Experience)
    account: TextAccount = field(default_factory=TextAccount)
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

    # Before a run

    def prospect(self, tokens: Floats | None = None) -> Point:
        """The best round before any tree exists.

        `tokens` are the expected tokens of rounds with 0, 1, 2, ... guesses, by default the typical
        ones (`theory.tree_tokens`).
        """
        if tokens is None:
            tokens = theory.tree_tokens(np.arange(self.max_rows, dtype=np.float64))
        n_guesses = np.arange(len(tokens))
        seconds = self.experience.guessing_s(n_guesses)
        seconds[0] = self.experience.curve.second(1) + self.experience.plain_overhead_s
        best = int((tokens / np.maximum(seconds, 1e-9)).argmax())
        return Point(1 + best, best, float(tokens[best]) - 1, float(seconds[best]))

    # Before a round

    @property
    def risk_s(self) -> float:
        """Seconds that guesses may cost the text from now on."""
        return self.account.left * self._plain_s

    @property
    def _plain_s(self) -> float:
        """Seconds per token without guesses."""
        return self.experience.plain_s_of(self.n_texts)

    def plan(self) -> RoundPlan:
        """Decide whether the next round guesses."""
        known, text, plain_s = self.experience, self.account, self._plain_s
        if not self.may_step_aside:
            return RoundPlan(True)
        payoff, none = known.payoff, RoundPlan(False, 0.0)
        max_guesses = max(1, min(MAX_LINE, self.max_rows // self.n_texts - 1))
        if not known.is_sure or payoff.left:
            return none
        promise = known.promise(self.n_texts, max_guesses)
        if promise <= 1:
            return none
        reading_s = known.reading_s(text.unread)
        gain = 1 - 1 / payoff.speedup if payoff.pays else (1 - 1 / promise) / 2
        if reading_s > gain * text.expected_tokens(self.n_texts) * plain_s:
            return none
        risk_s = self.risk_s - text.unpaid_s(reading_s)
        row_s = known.curve.second(self.n_texts + 1) - known.curve.second(self.n_texts)
        least_s = known.step_s + known.overhead_s + row_s
        if risk_s < least_s:
            return none
        if payoff.pays:
            return RoundPlan(True, risk_s)
        return RoundPlan(True, max(risk_s * TRIAL_SHARE, least_s), is_trial=True)

    @property
    def _prompts_s(self) -> float:
        """Seconds that prompt rows add to a pass without guesses."""
        if not self.n_prompt_rows:
            return 0.0
        curve, n_texts = self.experience.curve, self.n_texts
        return curve.second(n_texts + self.n_prompt_rows) - curve.second(n_texts)

    def drafts_beside(self, n_rows: int) -> bool:
        """True if drafting during a pass over `n_rows` saves more time than it costs."""
        return bool(self._saved_beside_s(np.array([n_rows]))[0] >= 0)

    def _saved_beside_s(self, n_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Net seconds that drafting during passes saves; negative if it costs more."""
        curve = self.experience.curve
        if not self.may_overlap or not curve.read_s:
            return np.full(len(n_rows), -math.inf)
        longer_s = curve.seconds(n_rows, beside=True) - curve.seconds(n_rows)
        return self.experience.kept_s - longer_s

    # While a round's tree grows

    def grows_on(self, plan: RoundPlan, so_far: RoundSoFar) -> bool:
        """True if another draft step is better than verifying now."""
        if not so_far.open_nodes:
            return False
        if self.stop_rule is not None:
            return not self.stop_rule.fires(so_far)
        if not self.experience.curve.is_known:
            return so_far.draft_steps < 1
        return self._best(plan, so_far, self.horizons).n_steps > 0

    def best(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best point without further draft steps: how many nodes to verify."""
        if self.stop_rule is not None or not self.experience.curve.is_known:
            n_rows = len(so_far.tree)
            accepted = float(so_far.tree.cumulative[:n_rows].sum()) - 1
            return Point(n_rows, 0, accepted, self.experience.curve.second(n_rows))
        return self._best(plan, so_far, ())

    def min_confidence(self) -> float:
        """Least cumulative confidence of guesses that need no draft step."""
        if self.stop_rule is not None or not self.experience.tries:
            return 0.0
        first, last = self.experience.curve.compute_s(np.array([1, self.max_rows]))
        row_s = (last - first) / max(1, self.max_rows - 1)
        return float(self.min_benefit_ratio * row_s * self.experience.rate)

    @property
    def n_hidden(self) -> int:
        """Number of rows whose compute time is hidden by the reads of a pass."""
        compute_s = self.experience.curve.compute_s(np.arange(1, self.max_rows + 1))
        return int(np.searchsorted(compute_s, self.experience.curve.read_s, side="right"))

    def _best(self, plan: RoundPlan, so_far: RoundSoFar, horizons: tuple[int, ...]) -> Point:
        """The best point from here on that `plan` allows, with no further step or as many as one of
        `horizons`."""
        tree, spent_s, known = so_far.tree, so_far.draft_s, self.experience
        n_grown = horizons[-1] * so_far.n_ends if horizons else 0
        order, rows = self._rows(tree, n_grown)
        ranked = tree.cumulative[order]
        # an error of the confidences is compounded at every depth
        corrections = known.calibration ** tree.depth[: len(tree)]
        calibrated = np.minimum(1.0, tree.cumulative[: len(tree)] * corrections)
        expected = np.cumsum(calibrated[order]) - 1.0
        n_nodes = len(order)
        n_others = self.n_texts - 1
        n_other_rows = n_others + self.n_prompt_rows
        max_rows = min(self.max_rows, self.n_texts * int(known.curve.max_rows))
        most = max(1, min(max_rows - n_other_rows, len(rows)))
        rows = rows[:most] + n_other_rows
        pass_s = known.curve.seconds(rows) + known.overhead_s - self._prompts_s
        # drafting during a pass has half of the cores
        pass_s -= np.clip(self._saved_beside_s(rows), 0.0, 0.5 * pass_s)
        step_s = known.step_s
        late = known.late(self.n_texts)
        best, best_value = Point(1, 0, 0.0, float(pass_s[0])), -math.inf

        def consider(n_steps: int, accepted: NDArray[np.float64], first_row: int) -> None:
            nonlocal best, best_value
            steps_s = -(-n_steps // so_far.step_depth) * step_s
            seconds = pass_s[first_row - 1 : first_row - 1 + len(accepted)] + steps_s
            values = late.rate_with(self.n_texts + accepted, spent_s + seconds)
            if tree.draws:  # drawn guesses must all be verified
                values[: n_nodes + n_steps - first_row] = -math.inf
            if plan.risk_s != math.inf:
                at_risk_s = seconds - pass_s[0]
                values = np.where(at_risk_s <= max(0.0, plan.risk_s - spent_s), values, -math.inf)
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
            stands = np.cumsum(known.hit_rate ** np.arange(1, horizons[-1] + 1))
            line = float(calibrated[ends].sum()) * stands
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

    # After a round

    def begin_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The planner for a new text of at most `room` tokens, `n_unread` of which the draft has
        yet to read."""
        payoff = self.experience.payoff.in_another_text()
        return replace(
            self,
            experience=replace(self.experience, payoff=payoff),
            account=TextAccount.of(n_unread, room),
        )

    def join_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The planner after one more text joined the active ones."""
        other = TextAccount.of(n_unread, room)
        return replace(self, account=self.account.with_text(other))

    def with_texts(self, n_unread: int, room: int) -> RoundPlanner:
        """The planner for texts with `n_unread` tokens that the draft has not read and at most
        `room` tokens to come, in total."""
        return replace(self, account=replace(self.account, unread=n_unread, room=room))

    def sharing(self, n_texts: int, n_prompt_rows: int) -> RoundPlanner:
        """The planner for passes over `n_texts` texts and `n_prompt_rows` rows of prompts."""
        after = replace(self, n_prompt_rows=n_prompt_rows)
        if n_texts == self.n_texts:
            return after
        kept = 1.0 if n_texts < self.n_texts else 0.0
        known = replace(self.experience, payoff=self.experience.payoff.faded(kept))
        return replace(after, n_texts=n_texts, experience=known)

    def observe_prompt(self, report: PassReport, n_context: int | None = None) -> RoundPlanner:
        """The planner after the target read a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        known = self.experience.observe_prompt(report, n_context)
        account = replace(self.account, prompt_s=report.wall_s)
        return replace(self, experience=known, account=account)

    def observe_size(self, n_rows: int, report: PassReport) -> RoundPlanner:
        """The planner after a pass over `n_rows` that was made to time it."""
        curve = self.experience.curve.with_pass(n_rows, report, drafted_beside=False)
        return replace(self, experience=replace(self.experience, curve=curve))

    def observe_reading(self, seconds: float) -> RoundPlanner:
        """The planner after the draft read its unread tokens in this time."""
        known, text = self.experience, self.account
        if not text.unread:
            return self
        known = known.observe_reading(text.unread, seconds)
        # what other processes hold up is not charged to guesses
        charged_s = text.unpaid_s(min(seconds, known.reading_s(text.unread)))
        account = replace(text, unread=0, lost=text.lost + charged_s / self._plain_s)
        return replace(self, experience=known, account=account)

    def observe(self, outcome: RoundOutcome) -> RoundPlanner:
        """The planner after a round."""
        known = self.experience.observe_costs(outcome)
        account = self.account.with_round(outcome)
        if not outcome.guessed:
            n_rounds = HIT_ROUNDS if any(one.was_first for one in outcome.found) else 1
            known = known.faded(FADE)
            known = replace(known, payoff=known.payoff.with_plain_round(n_rounds))
            return replace(self, experience=known, account=account)
        known = known.observe_nodes(outcome.path_nodes)
        # half of what came, which chance moves, and half of what was to be expected
        expected = known.calibration / self.experience.calibration * outcome.expected
        tokens = (outcome.n_tokens + outcome.n_texts + expected) / 2
        token_s, seconds = self._charged_s(known, outcome)
        reading_s = 0.0
        if self.account.unread and outcome.reading_s:
            known = known.observe_reading(self.account.unread, outcome.reading_s)
            reading_s = min(outcome.reading_s, known.reading_s(self.account.unread))
        known = replace(known, payoff=known.payoff.with_round(tokens, seconds / token_s))
        lost = (seconds + reading_s) / token_s - outcome.n_tokens
        rule = self.stop_rule.observe(outcome) if self.stop_rule is not None else None
        account = replace(account, lost=account.lost + lost)
        return replace(self, experience=known, account=account, stop_rule=rule)

    def _charged_s(self, known: Experience, outcome: RoundOutcome) -> tuple[float, float]:
        """Seconds of a token without guesses, and of this round as its guesses are charged for it:
        what other processes held up is not their fault."""
        curve, n_rows = known.curve, outcome.n_rows
        token_s = known.plain_s_of(outcome.n_texts)
        pass_s = curve.second(n_rows, beside=outcome.steps_beside > 0) - self._prompts_s
        if outcome.first_row_stall_s is not None:
            pass_s += outcome.choice_stall_s - curve.expert_s(n_rows)
            if outcome.n_texts == 1:
                # predictable tokens use experts that are in memory more often than others
                token_s += outcome.first_row_stall_s - curve.expert_s(1)
        steps_s = min(outcome.growing_s, outcome.draft_steps * known.step_s)
        return max(token_s, 1e-9), min(pass_s, outcome.pass_s) + steps_s + known.overhead_s

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        return self.experience.state_dict()

    def load_state_dict(self, numbers: Numbers) -> RoundPlanner:
        """The planner with the state of an earlier run; invalid numbers are ignored."""
        return replace(self, experience=self.experience.load_state_dict(numbers))
