"""The plan of a round: guesses or none, depth of drafting, nodes to verify, overlap with the pass.

A frozen value that plans a round, decides while its tree grows, and answers each round with its
successor. It reads no clock and calls no model.
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
    LONGEST_REHEARSAL,
    PROMISED_TOKENS,
    SHORTEST_REHEARSAL,
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
"""Share of a text's time that guesses may lose which have been shown to pay."""
SAFE_MARGIN = 1.15
"""Times as fast as without guesses that they must have been, where a text has no credit left."""


class Point(NamedTuple):
    """One possible round."""

    n_rows: int
    n_steps: int
    """Draft steps yet to be made."""
    accepted: float
    """Guesses expected to be accepted."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Limits of one round."""

    guesses: bool
    credit_s: float = math.inf
    """Most seconds that the round may lose by its guesses."""
    is_trial: bool = False
    """True if guesses have not been shown to pay."""
    rehearses: int = 0
    """Tokens of the text that the draft is tried on before the round."""


@dataclass(frozen=True, slots=True)
class RoundPlanner:
    """Chooses the round with the most expected tokens a second.

    No guesses, a line, a tree of any size and drafting beside the pass are points of one choice,
    all looked at together: a point's tokens follow from the calibrated confidences of the nodes
    that hang and the chances of those that would, its seconds from the curve of passes and from
    what drafting takes. The best point raises the rate of the best rounds of late the most: in the
    first round of all it has the most tokens a second itself, later the most beyond what its
    seconds are worth.

    A point is allowed if the text's credit covers all that it could lose (a conservative bandit: Wu
    et al., arXiv 1602.04282). The credit grows by a share of the time, which is larger once guesses
    have been shown to pay, and by what guesses have saved.
    """

    horizons: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6, 8, 12, 16)
    """Numbers of further draft steps that are looked at."""
    worth_growing: ClassVar[float] = 0.5
    """Share of what a node's row costs that its chance must be worth to be hung for nothing."""

    experience: Experience = field(default_factory=Experience)
    account: TextAccount = field(default_factory=TextAccount)
    stop_rule: StopRule | None = None
    """Decides when to verify, in place of this value; whether to guess at all, it does not."""
    may_step_aside: bool = True
    may_overlap: bool = True
    max_rows: int = 64
    n_texts: int = 1
    """Texts of a pass; their trees are looked at as one, in which the root stands for all roots."""
    n_prompt_rows: int = 0
    """Rows of the pass that read prompts, whatever the trees do."""
    lines: Limits | None = None
    """Limits of a tree that is computed as lines, whose rows are more than its nodes."""

    # Before a run

    def prospect(self, tokens: Floats | None = None) -> Point:
        """The best round before there is a tree. `tokens` are those of rounds with 0, 1, 2, ...
        guesses; by default, what trees up to the largest usually yield."""
        if tokens is None:
            tokens = theory.tree_tokens(np.arange(self.max_rows, dtype=np.float64))
        n_guesses = np.arange(len(tokens))
        seconds = self.experience.guessing_s(n_guesses)
        seconds[0] = self.experience.curve.second(1) + self.experience.plain_overhead_s
        best = int(self.experience.best_of_late().rate_with(tokens, seconds).argmax())
        return Point(1 + best, best, float(tokens[best]) - 1, float(seconds[best]))

    # Before a round

    @property
    def credit_s(self) -> float:
        """Seconds that guesses may still cost the text."""
        return self.account.credit_s(self._plain_s, self.n_texts)

    @property
    def _plain_s(self) -> float:
        """Seconds of a token without guesses."""
        return self.experience.plain_s_of(self.n_texts)

    def plan(self) -> RoundPlan:
        """The plan of the next round."""
        known, text, none = self.experience, self.account, RoundPlan(False, 0.0)
        if not self.may_step_aside:
            return RoundPlan(True)
        if (
            not known.is_sure
            or known.guessing_rate(self.n_texts, self.max_rows) * self._plain_s <= 1
        ):
            return none
        gained_s, least_s = self._gained_s, known.step_s + known.overhead_s
        if gained_s > 0:
            # on small experts a wrong guess may cost as much as a token, a right one saves little
            share = CREDIT_SHARE if known.curve.has_fine_experts else PROVEN_SHARE
            credit_s = text.credit_s(self._plain_s, self.n_texts, share)
            if gained_s <= known.reading_s(text.unread):
                return replace(none, rehearses=self._rehearsal)
        else:
            credit_s = self.credit_s - text.unpaid_s(known.reading_s(text.unread))
            # a trial verifies a guess, or it tells nothing
            row_s = known.curve.second(2) - known.curve.second(1)
            least_s += (1 - known.chances.proof) * row_s
        if credit_s < least_s:
            return replace(none, rehearses=self._rehearsal)
        return RoundPlan(True, credit_s, is_trial=not gained_s)

    @property
    def _gained_s(self) -> float:
        """Seconds that guesses save the rest of the text by what they have shown; 0 if nothing."""
        known, text, plain_s = self.experience, self.account, self._plain_s
        rate = max(known.proven_rate, known.line_rate(self.n_texts, self.max_rows))
        if rate * plain_s <= (1.0 if self.credit_s > 0 else SAFE_MARGIN):
            return 0.0
        n_tokens = min(text.room, max(PROMISED_TOKENS * self.n_texts, text.n_tokens))
        return n_tokens * (plain_s - 1 / rate)

    @property
    def _rehearsal(self) -> int:
        """On how many tokens the credit lets the draft be tried, where reading all is too dear."""
        text = self.account
        if text.n_tokens - text.n_tried < SHORTEST_REHEARSAL:
            return 0
        n_tokens = min(LONGEST_REHEARSAL, text.n_tokens)
        if text.unread <= LONGEST_REHEARSAL:
            n_tokens = text.unread
        cost_s = self.experience.reading_s(n_tokens) + self.experience.step_s
        return n_tokens if cost_s <= self.credit_s else 0

    @property
    def _prompts_s(self) -> float:
        """Seconds by which the rows of prompts make a pass without guesses longer."""
        if not self.n_prompt_rows:
            return 0.0
        curve, n_texts = self.experience.curve, self.n_texts
        return curve.second(n_texts + self.n_prompt_rows) - curve.second(n_texts)

    def drafts_beside(self, n_rows: int) -> bool:
        """True if drafting beside a pass over `n_rows` saves more than it takes."""
        return bool(self._saved_beside_s(np.array([n_rows]))[0] >= 0)

    def _saved_beside_s(self, n_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds that drafting beside passes saves; negative where it makes them longer."""
        curve = self.experience.curve
        if not self.may_overlap or not curve.read_s:
            return np.full(len(n_rows), -math.inf)
        longer_s = curve.seconds(n_rows, beside=True) - curve.seconds(n_rows)
        return self.experience.kept_s - longer_s

    # While a round's tree grows

    def grows_on(self, plan: RoundPlan, so_far: RoundSoFar) -> bool:
        """True if one more draft step is better than verifying now."""
        if not so_far.open_nodes:
            return False
        if self.stop_rule is not None:
            return not self.stop_rule.fires(so_far)
        if not self.experience.curve.is_known:
            return so_far.draft_steps < 1
        is_first = so_far.draft_steps < 1 and plan.is_trial
        return is_first or self._best(plan, so_far, self.horizons).n_steps > 0

    def best(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best number of the tree's nodes to verify, the most probable first."""
        if self.stop_rule is not None or not self.experience.curve.is_known:
            n_rows = len(so_far.tree)
            accepted = float(so_far.tree.cumulative[:n_rows].sum()) - 1
            return Point(n_rows, 0, accepted, self.experience.curve.second(n_rows))
        return self._best(plan, so_far, ())

    def imagined(self, plan: RoundPlan, so_far: RoundSoFar) -> Point:
        """The best point from here on, whatever the credit is."""
        return self._best(replace(plan, credit_s=math.inf), so_far, self.horizons)

    def least_confidence(self) -> float:
        """Nodes that are less probable are not hung though guessing them costs nothing."""
        if self.stop_rule is not None or not self.experience.rounds:
            return 0.0
        first, last = self.experience.curve.compute_s(np.array([1, self.max_rows]))
        row_s = (last - first) / max(1, self.max_rows - 1)
        return float(self.worth_growing * row_s * self.experience.rate)

    @property
    def n_hidden(self) -> int:
        """Rows that a pass computes while it reads."""
        compute_s = self.experience.curve.compute_s(np.arange(1, self.max_rows + 1))
        return int(np.searchsorted(compute_s, self.experience.curve.read_s, side="right"))

    def _best(self, plan: RoundPlan, so_far: RoundSoFar, horizons: tuple[int, ...]) -> Point:
        """The best point that can be reached from here within `plan`."""
        tree, spent_s, known = so_far.tree, so_far.draft_s, self.experience
        n_grown = horizons[-1] * so_far.n_ends if horizons else 0
        order, rows = self._rows(tree, n_grown)
        ranked = tree.cumulative[order]
        # a path that claims too much at each of its nodes claims far too much at its end
        doubts = known.chances.honesty ** tree.depth[: len(tree)]
        honest = np.minimum(1.0, tree.cumulative[: len(tree)] * doubts)
        expected = np.cumsum(honest[order]) - 1.0
        n_nodes = len(order)
        n_others = self.n_texts - 1
        n_taken = n_others + self.n_prompt_rows
        most_rows = min(self.max_rows, self.n_texts * int(known.curve.most_rows))
        most = max(1, min(most_rows - n_taken, len(rows)))
        rows = rows[:most] + n_taken
        pass_s = known.curve.seconds(rows) + known.overhead_s - self._prompts_s
        # what grows beside a pass has half of the cores
        pass_s -= np.clip(self._saved_beside_s(rows), 0.0, 0.5 * pass_s)
        step_s = known.step_s
        late = known.best_of_late()
        best, best_value = Point(1, 0, 0.0, float(pass_s[0])), -math.inf

        def look(n_steps: int, accepted: NDArray[np.float64], first_row: int) -> None:
            nonlocal best, best_value
            steps_s = -(-n_steps // so_far.step_depth) * step_s
            seconds = pass_s[first_row - 1 : first_row - 1 + len(accepted)] + steps_s
            values = late.rate_with(self.n_texts + accepted, spent_s + seconds)
            if tree.draws:  # all that was drawn is verified
                values[: n_nodes + n_steps - first_row] = -math.inf
            if plan.credit_s != math.inf:
                risk_s, left_s = seconds - pass_s[0], max(0.0, plan.credit_s - spent_s)
                values = np.where(risk_s <= left_s, values, -math.inf)
            at = len(values) - 1 - int(values[::-1].argmax())
            if values[at] > best_value + 1e-12:
                best_value = float(values[at])
                best = Point(first_row + at, n_steps, float(accepted[at]), float(seconds[at]))

        look(0, expected[:most], 1)
        if horizons and so_far.open_nodes:
            open_nodes = list(so_far.open_nodes)
            best_first = np.argsort(-tree.cumulative[open_nodes], kind="stable")
            ends = [open_nodes[n] for n in best_first[: so_far.n_ends]]
            rank = int((ranked >= tree.cumulative[ends[0]]).sum())
            line = np.zeros(horizons[-1])
            for node in ends:
                stands = known.chances.line(float(tree.confidence[node]), horizons[-1])
                line += honest[node] * np.cumsum(stands)
            for n_steps in horizons:
                n_rows = n_steps * len(ends)
                end = most - n_rows
                if end >= rank:
                    look(n_steps, expected[rank - 1 : end] + line[n_steps - 1], rank + n_rows)
        return best

    def _rows(self, tree: TokenTree, n_grown: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes to verify, the most probable first, and the rows of a pass over the first 1, 2, ...
        of them, and over up to `n_grown` more."""
        order = np.argsort(-tree.cumulative[: len(tree)], kind="stable")
        rows, n_lines = np.arange(1, len(tree) + 1), 1
        if self.lines is not None:  # a node more makes all lines longer
            order, rows = np.array(most_probable(tree, self.lines)).T
            n_lines = tree.branch_count(order.tolist())
        return order, np.append(rows, rows[-1] + n_lines * np.arange(1, n_grown + 1))

    # After a round

    def begin_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The value for a new text of at most `room` tokens; the draft has not read `n_unread`."""
        chances = self.experience.chances.for_another_text()
        return replace(
            self,
            experience=replace(self.experience, chances=chances),
            account=TextAccount(unread=n_unread, room=room),
        )

    def join_text(self, n_unread: int, room: int) -> RoundPlanner:
        """The value for one more text beside those at work."""
        return replace(self, account=self.account.with_text(n_unread, room))

    def with_texts(self, n_unread: int, room: int) -> RoundPlanner:
        """The value for texts of which the draft has not read `n_unread` tokens, and in which at
        most `room` may follow."""
        return replace(self, account=replace(self.account, unread=n_unread, room=room))

    def sharing(self, n_texts: int, n_prompt_rows: int) -> RoundPlanner:
        """The value for passes of so many texts and rows of prompts."""
        after = replace(self, n_prompt_rows=n_prompt_rows)
        if n_texts == self.n_texts:
            return after
        known = self.experience
        # where texts share a pass, a token that was saved is worth less
        worth = min(1.0, known.plain_s_of(n_texts) / self._plain_s)
        return replace(
            after,
            n_texts=n_texts,
            experience=known.for_texts(self.n_texts, n_texts),
            account=self.account.worth(worth),
        )

    def observe_prompt(self, report: PassReport, n_context: int | None = None) -> RoundPlanner:
        """The value after the target read a prompt to the end of a text of `n_context` tokens; None
        where passes are over several texts."""
        account = replace(self.account, prompt_s=report.wall_s)
        known = self.experience.observe_prompt(report, n_context)
        return replace(self, experience=known, account=account)

    def observe_reading(self, seconds: float, tried: Sequence[Rehearsed] = ()) -> RoundPlanner:
        """The value after the draft read what it had not read, before a round, and was tried on
        the end of it."""
        if not self.account.unread:
            return self
        known = self.experience.observe_reading(self.account.unread, seconds)
        # what other programs held up is not charged to guesses
        charged_s = min(seconds, known.reading_s(self.account.unread))
        return replace(
            self,
            experience=known.observe_foreign(tried),
            account=self.account.with_reading(charged_s),
        )

    def observe(self, outcome: RoundOutcome) -> RoundPlanner:
        """The value after a round."""
        known, rule, saved_s = self.experience.observe(outcome), self.stop_rule, 0.0
        if outcome.guessed:
            known = known.observe_reading(self.account.unread, outcome.reading_s)
            rule = rule.observe(outcome) if rule is not None else None
            # a pass that other programs held up is not charged to its guesses
            pass_s = known.curve.second(outcome.n_rows, beside=outcome.steps_beside > 0)
            pass_s += outcome.choice_stall_s - known.curve.expert_s(outcome.n_rows)
            held_up_s = max(0.0, outcome.pass_s - pass_s)
            token_s = known.plain_s_of(outcome.n_texts)
            if outcome.n_texts == 1 and outcome.first_row_stall_s is not None:
                # tokens that are easily guessed use experts that are in memory
                token_s += outcome.first_row_stall_s - known.curve.expert_s(1)
            saved_s = outcome.n_tokens * token_s - (outcome.wall_s - held_up_s - self._prompts_s)
        elif outcome.rehearsed:
            saved_s = -outcome.reading_s
        account = self.account.with_round(outcome, saved_s)
        if len(account.found) >= SHORTEST_REHEARSAL:
            known = known.observe_found(account.found, SAFE_MARGIN)
            account = replace(account, found=())
        return replace(self, experience=known, account=account, stop_rule=rule)

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        return self.experience.state_dict()

    def load_state_dict(self, numbers: Numbers) -> RoundPlanner:
        """The value gone on from where another run left off. Nonsense is ignored."""
        return replace(self, experience=self.experience.load_state_dict(numbers))
