"""The round planner: decides on drafting, tree size, nodes to verify, and overlap with the pass.

A frozen value; each round returns its successor. It reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec import theory
from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.experience import (
    CREDIT_SHARE,
    MAX_REHEARSAL,
    MIN_REHEARSAL,
    PROMISED_TOKENS,
    Experience,
    Floats,
    TextAccount,
)
from edgespec.engine.outcome import Rehearsed, RoundOutcome
from edgespec.engine.pacer import Limits, most_probable
from edgespec.engine.stop_rules import RoundSoFar, StopRule
from edgespec.tree import TokenTree
from edgespec.values import PassReport

PROVEN_SHARE = 0.1
"""Share of a text's time that proven guesses may cost."""
MIN_READING_GAIN = 1.75
"""Tokens whose time must be expected to be saved, net, before the draft reads a longer text."""
SAFE_MARGIN = 1.15
"""Speedup that guesses must have shown in a text without credit."""


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
    credit_s: float = math.inf
    """Most seconds that the guesses may cost."""
    is_trial: bool = False
    """True if guesses are not proven to pay in this text."""
    n_rehearsed: int = 0
    """Latest tokens on which the draft is rehearsed before a round without guesses."""


@dataclass(frozen=True, slots=True)
class RoundPlanner:
    """Chooses the round with the most expected tokens per second.

    The candidates (`Point`) are no guesses, a line, and trees of any size, with or without drafting
    during the pass. Expected tokens follow from the calibrated confidences of the tree's nodes and
    the acceptance rates of nodes yet to be drafted; seconds from the pass curve and the cost of
    draft steps. The best point maximises (T + tokens) / (S + seconds), where T and S are the tokens
    and seconds of the recent best rounds.

    A point is allowed if the text's credit covers its cost in case all guesses are rejected (a
    conservative bandit: Wu et al., arXiv 1602.04282). The credit is a share of the text's time,
    larger once guesses are proven to pay, plus the time that guesses have saved.
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
        best = int(self.experience.recent_best().rate_with(tokens, seconds).argmax())
        return Point(1 + best, best, float(tokens[best]) - 1, float(seconds[best]))

    # Before a round

    @property
    def credit_s(self) -> float:
        """Seconds that unproven guesses may cost the text from now on."""
        return self.account.credit_s(self._plain_s, self.n_texts)

    @property
    def _plain_s(self) -> float:
        """Seconds per token without guesses."""
        return self.experience.plain_s_of(self.n_texts)

    def plan(self) -> RoundPlan:
        """Decide whether the next round guesses."""
        known, text, none = self.experience, self.account, RoundPlan(False, 0.0)
        if not self.may_step_aside:
            return RoundPlan(True)
        if (
            not known.is_sure
            or known.guessing_rate(self.n_texts, self.max_rows) * self._plain_s <= 1
        ):
            return none
        gain_s, least_s = self._expected_gain_s, known.step_s + known.overhead_s
        if gain_s > 0:
            # with fine-grained experts a rejected guess may cost as much as a token
            is_fine = known.curve.has_fine_experts
            share = CREDIT_SHARE if is_fine else PROVEN_SHARE
            credit_s = text.credit_s(self._plain_s, self.n_texts, share)
            least_gain_s = known.reading_s(text.unread)
            if text.unread > MIN_REHEARSAL and not is_fine:
                least_gain_s += MIN_READING_GAIN * self._plain_s
            if gain_s <= least_gain_s:
                return replace(none, n_rehearsed=self._rehearsal)
        else:
            credit_s = self.credit_s - text.unpaid_s(known.reading_s(text.unread))
            # a trial without a verified guess is no evidence
            row_s = known.curve.second(2) - known.curve.second(1)
            least_s += (1 - known.chances.text_evidence) * row_s
        if credit_s < least_s:
            return replace(none, n_rehearsed=self._rehearsal)
        return RoundPlan(True, credit_s, is_trial=not gain_s)

    @property
    def _expected_gain_s(self) -> float:
        """Expected seconds that guesses save the rest of the text; 0 unless proven to pay."""
        known, text, plain_s = self.experience, self.account, self._plain_s
        rate = max(known.proven_rate, known.line_rate(self.n_texts, self.max_rows))
        if rate * plain_s <= (1.0 if self.credit_s > 0 else SAFE_MARGIN):
            return 0.0
        n_tokens = min(text.room, max(PROMISED_TOKENS * self.n_texts, text.n_tokens))
        return n_tokens * (plain_s - 1 / rate)

    @property
    def _rehearsal(self) -> int:
        """Number of tokens to rehearse the draft on, as the credit allows; 0 for none."""
        text = self.account
        if text.n_tokens - text.n_tried < MIN_REHEARSAL:
            return 0
        n_tokens = min(MAX_REHEARSAL, text.n_tokens)
        if text.unread <= MAX_REHEARSAL:
            n_tokens = text.unread
        cost_s = self.experience.reading_s(n_tokens) + self.experience.step_s
        return n_tokens if cost_s <= self.credit_s else 0

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

    def imagined(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best point from here on, ignoring the credit."""
        return self._best(replace(plan, credit_s=math.inf), so_far, self.horizons)

    def min_confidence(self) -> float:
        """Least cumulative confidence of guesses that need no draft step."""
        if self.stop_rule is not None or not self.experience.rounds:
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
        corrections = known.chances.calibration ** tree.depth[: len(tree)]
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
        recent = known.recent_best()
        best, best_value = Point(1, 0, 0.0, float(pass_s[0])), -math.inf

        def consider(n_steps: int, accepted: NDArray[np.float64], first_row: int) -> None:
            nonlocal best, best_value
            steps_s = -(-n_steps // so_far.step_depth) * step_s
            seconds = pass_s[first_row - 1 : first_row - 1 + len(accepted)] + steps_s
            values = recent.rate_with(self.n_texts + accepted, spent_s + seconds)
            if tree.draws:  # drawn guesses must all be verified
                values[: n_nodes + n_steps - first_row] = -math.inf
            if plan.credit_s != math.inf:
                risk_s, left_s = seconds - pass_s[0], max(0.0, plan.credit_s - spent_s)
                values = np.where(risk_s <= left_s, values, -math.inf)
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
            line = np.zeros(horizons[-1])
            for node in ends:
                accepted = known.chances.line(float(tree.confidence[node]), horizons[-1])
                line += calibrated[node] * np.cumsum(accepted)
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
        chances = self.experience.chances.for_another_text()
        return replace(
            self,
            experience=replace(self.experience, chances=chances),
            account=TextAccount(unread=n_unread, room=room),
        )

    def join_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The planner after one more text joined the active ones."""
        return replace(self, account=self.account.with_text(n_unread, room))

    def with_texts(self, n_unread: int, room: int) -> RoundPlanner:
        """The planner for texts with `n_unread` tokens that the draft has not read and at most
        `room` tokens to come, in total."""
        return replace(self, account=replace(self.account, unread=n_unread, room=room))

    def sharing(self, n_texts: int, n_prompt_rows: int) -> RoundPlanner:
        """The planner for passes over `n_texts` texts and `n_prompt_rows` rows of prompts."""
        after = replace(self, n_prompt_rows=n_prompt_rows)
        if n_texts == self.n_texts:
            return after
        known = self.experience
        # with more texts in a pass, a token takes less time
        ratio = min(1.0, known.plain_s_of(n_texts) / self._plain_s)
        return replace(
            after,
            n_texts=n_texts,
            experience=known.for_texts(self.n_texts, n_texts),
            account=self.account.with_savings(ratio),
        )

    def observe_prompt(self, report: PassReport, n_context: int | None = None) -> RoundPlanner:
        """The planner after the target read a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        account = replace(self.account, prompt_s=report.wall_s)
        known = self.experience.observe_prompt(report, n_context)
        return replace(self, experience=known, account=account)

    def observe_reading(self, seconds: float, tried: Sequence[Rehearsed] = ()) -> RoundPlanner:
        """The planner after the draft read its unread tokens and was rehearsed on the last ones
        (`tried`)."""
        if not self.account.unread:
            return self
        known = self.experience.observe_reading(self.account.unread, seconds)
        # delays by other processes are not charged to guesses
        charged_s = min(seconds, known.reading_s(self.account.unread))
        return replace(
            self,
            experience=known.observe_prompt_rehearsal(tried),
            account=self.account.with_reading(charged_s),
        )

    def observe(self, outcome: RoundOutcome) -> RoundPlanner:
        """The planner after a round."""
        known, rule, saved_s = self.experience.observe(outcome), self.stop_rule, 0.0
        if outcome.guessed:
            known = known.observe_reading(self.account.unread, outcome.reading_s)
            rule = rule.observe(outcome) if rule is not None else None
            # the part of a pass that exceeds its prediction is not charged to its guesses
            pass_s = known.curve.second(outcome.n_rows, beside=outcome.steps_beside > 0)
            pass_s += outcome.choice_stall_s - known.curve.expert_s(outcome.n_rows)
            delay_s = max(0.0, outcome.pass_s - pass_s)
            token_s = known.plain_s_of(outcome.n_texts)
            if outcome.n_texts == 1 and outcome.first_row_stall_s is not None:
                # predictable tokens use experts that are in memory more often than others
                token_s += outcome.first_row_stall_s - known.curve.expert_s(1)
            saved_s = outcome.n_tokens * token_s - (outcome.wall_s - delay_s - self._prompts_s)
        elif outcome.rehearsed:
            saved_s = -outcome.reading_s
        account = self.account.with_round(outcome, saved_s)
        if len(account.found) >= MIN_REHEARSAL:
            known = known.observe_free_rehearsal(account.found, SAFE_MARGIN)
            account = replace(account, found=())
        return replace(self, experience=known, account=account, stop_rule=rule)

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        return self.experience.state_dict()

    def load_state_dict(self, numbers: Numbers) -> RoundPlanner:
        """The planner with the state of an earlier run; invalid numbers are ignored."""
        return replace(self, experience=self.experience.load_state_dict(numbers))
