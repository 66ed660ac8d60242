"""Account of guesses: how much they brought, how much they may still cost, the best next round.

Amounts are in tokens, that is in the time of a token without guesses. It is asked with plain
arrays, reads no clock and calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.prices import Floats, Prices, octave
from edgespec.pool import Pool
from edgespec.rules.stop_rules import StopRule
from edgespec.values import PassReport

FADE = 0.95
"""Factor by which a round reduces the weight of earlier ones."""
START_TOKENS = 64
"""Tokens of a text from which guesses have credit, beside its prompt."""
START_SHARE, LATER_SHARE = 0.05, 0.002
"""Guesses may cost a text 5 % of these, and 0.2 % of all."""
RISK_SHARE = 0.5
"""Share of what guesses may still cost a text that one round may."""
DOUBT = 4.0
"""Guesses that are taken for wrong until others were checked."""
USUAL_SURENESS = 0.9
"""Confidence of guesses that are yet to be drafted, as far as drafted ones do not tell."""
MAX_LINE = 16
"""Longest line of guesses that is considered before any was drafted."""
HORIZONS = (1, 2, 4, 8, 16)
"""Numbers of further draft steps that are considered."""
SURE = 0.5
"""Least confidence of a guess that counts, verified or not."""
KNOWN_STEPS = 4
"""Draft steps of a round that tell as much of its next ones as all earlier rounds do."""


@dataclass(slots=True, eq=False)
class Ledger:
    """Account of guesses. Rounds teach it what they brought, and it says what guesses may cost the
    next one, and which of them bring the most tokens a second.

    The candidates are no guesses, a line, and trees of any size. Nodes of all texts are one pool:
    arrays have the cumulative confidence of each node, 1 for the root of each text.

    What a draft brings is found by trying it: a real tree early in a text, and again when the text
    can afford one. Earlier texts leave less to a text if guesses have cost more in them than they
    saved.
    """

    prices: Prices = field(default_factory=Prices)
    stop_rule: StopRule | None = None
    """Decides when to verify in place of the ledger."""
    may_step_aside: bool = True
    """Allow rounds without guesses."""
    may_overlap: bool = True
    """Allow drafting during a pass."""
    timed_rows: tuple[int, ...] = ()
    """Rows of the passes that are timed before the first guess."""

    tokens: float = 0.0
    """Fading sum of the expected tokens of rounds with guesses."""
    plain_tokens: float = 0.0
    """Fading sum of the tokens that would have taken their time without guesses."""
    spent: float = 0.0
    """Cost of guesses in the earlier texts of the pair, until saved again, as a share of what they
    may cost a text of 64 tokens or more: all texts together may lose as much."""

    n_texts: int = 1
    """Texts in a pass."""
    n_tokens: int = 0
    """Tokens generated so far."""
    n_plain: float = 0.0
    """Tokens that this would have brought without guesses, in the same time."""
    granted: float = 0.0
    """Tokens that guesses might cost the texts at work if earlier ones had lost none."""
    lost: float = 0.0
    """Tokens lost by guesses so far, beyond the share of all that they may cost; negative if they
    saved time."""
    claimed: float = 0.0
    right: float = 0.0
    """Fading confidence of the surest guess for each token, verified or not, and how many were
    right: what guesses bring even if they are right no more often may be risked in addition."""

    # The next pass

    max_nodes: int = 1
    n_prompt_rows: int = 0
    """Rows of the pass that are prompt tokens, in addition to the nodes."""
    n_unread: int = 0
    """Tokens that the drafts have not read."""
    risk_s: float = math.inf
    """Most seconds that guesses may cost."""
    drafts: bool = True
    """True if drafts may guess, and read the text for that; what costs no step may always."""

    @property
    def speedup(self) -> float:
        """Tokens of rounds with guesses to those without in the same time; 1 before the first."""
        return (self.tokens + 1) / (self.plain_tokens + 1)

    @property
    def gain(self) -> float:
        """Tokens of the texts at work, or the latest ones, to those without guesses in the same
        time; 0 before the first."""
        return self.n_tokens / self.n_plain if self.n_plain else 0.0

    @property
    def left(self) -> float:
        """Tokens that guesses may still cost the texts at work."""
        return (1.0 - self.spent) * self.granted - self.lost

    @property
    def spent_now(self) -> float:
        """`spent` with the texts at work."""
        text_credit = max(self.granted, START_SHARE * START_TOKENS)
        return min(1.0, max(0.0, self.spent + self.lost / text_credit))

    def begin_text(self, room: int, beside: bool = False) -> None:
        """Begin a text of at most `room` tokens, alone or `beside` others."""
        if not beside:
            self.spent = self.spent_now
            self.n_tokens = 0
            self.granted = self.lost = self.claimed = self.right = self.n_plain = 0.0
        self._grant(min(START_TOKENS, room), beside)

    def begin_pass(
        self, n_texts: int, n_unread: int, max_nodes: int, n_prompt_rows: int = 0
    ) -> None:
        """Begin a pass for `n_texts`, of which drafts have not read `n_unread` tokens, over up to
        `max_nodes` nodes and `n_prompt_rows` rows of prompts.

        Drafts guess if a line of usual guesses pays that the text can afford, and what they have to
        read before.
        """
        known = self.prices
        self.n_texts, self.n_unread = n_texts, n_unread
        self.max_nodes, self.n_prompt_rows = max_nodes, n_prompt_rows
        if not self.may_step_aside:
            return
        plain_s, reading_s = known.plain_s(n_texts), known.reading_s(n_unread)
        lines_s = known.lines_s(max(1, min(MAX_LINE, max_nodes // n_texts)), n_texts)
        tokens = n_texts * np.cumsum(USUAL_SURENESS ** np.arange(len(lines_s)))
        gains, costs_s = tokens * plain_s / np.maximum(lines_s, 1e-9), lines_s - lines_s[0]
        left_s = self.left * plain_s - reading_s
        affordable = np.flatnonzero((gains > 1 + 1e-9) & (costs_s <= left_s))
        self.drafts = known.is_sure and affordable.size > 0
        least_s = float(costs_s[affordable[0]]) if self.drafts else 0.0
        self.risk_s = max(RISK_SHARE * left_s, least_s) if known.is_sure else 0.0

    # The best of it

    def worth_a_step(
        self,
        cumulative: Floats,
        ends: Floats,
        depths: Any,
        steps: int = 0,
        spent_s: float = 0.0,
        step_depth: int = 1,
    ) -> bool:
        """True if another draft step is better than verifying now.

        `ends` and `depths` are those of the open nodes that the step extends by `step_depth` nodes
        each, after `steps` that took `spent_s`.
        """
        if not self.prices.is_known:
            return steps < 1
        # steps of this round tell of the next ones, as the caches are as cold, and others as busy
        step_s = (KNOWN_STEPS * self.prices.step_s + spent_s) / (KNOWN_STEPS + steps)
        # a further guess is as sure as those before it, and two that are as sure as usual
        sureness = (USUAL_SURENESS**2 * ends) ** (1 / (2 + depths))
        best, _ = self._best(np.sort(cumulative)[::-1], spent_s)
        for n in HORIZONS:
            line = ends[:, np.newaxis] * sureness[:, np.newaxis] ** np.arange(1, n + 1)
            grown = np.sort(np.append(cumulative, line))[::-1]
            if self._best(grown, spent_s, -(-n // step_depth) * step_s)[0] > best + 1e-12:
                return True
        return False

    def best(self, cumulative: Floats, spent_s: float = 0.0, rows: Any = None) -> tuple[int, float]:
        """Number of most probable nodes to verify, roots included, and the expected number of
        accepted guesses.

        `rows` are those of passes over the first 1, 2, ... nodes, best first, if they are more.
        """
        ranked = np.sort(cumulative)[::-1] if rows is None else cumulative
        n = self._best(ranked, spent_s, rows=rows)[1] if self.prices.is_known else len(ranked)
        return n, float(ranked[:n].sum()) - self.n_texts

    def hides(self, n_rows: int) -> bool:
        """True if drafting may go on during a pass over `n_rows`: where guesses pay, and the pass
        waits for reads though drafting takes half of the cores."""
        waits = bool(2 * self.prices.compute_s(n_rows) < self.prices.read_s)
        is_paying = self.speedup > 1 or not self.may_step_aside
        return self.drafts and self.may_overlap and is_paying and waits

    @property
    def prompts_s(self) -> float:
        """Seconds that prompt rows add to a pass without guesses."""
        pass_s = self.prices.pass_s
        return float(pass_s(self.n_texts + self.n_prompt_rows) - pass_s(self.n_texts))

    def _best(
        self, ranked: Floats, spent_s: float, further_s: float = 0.0, rows: Any = None
    ) -> tuple[float, int]:
        """Most tokens a second of the rounds of late with this one, after steps of `further_s`, and
        its number of nodes."""
        first, known = min(self.n_texts, len(ranked)), self.prices  # texts may have ended
        n_nodes = np.arange(first, max(first, min(self.max_nodes, len(ranked))) + 1)
        ranked = ranked[: n_nodes[-1]]
        rows = n_nodes if rows is None else rows[first - 1 : n_nodes[-1]]
        tokens = np.cumsum(ranked)[first - 1 :]
        seconds = known.pass_s(rows + self.n_prompt_rows) - self.prompts_s + known.rest_s
        late_s = self.plain_tokens * known.plain_s(first)
        values = (self.tokens + tokens) / (late_s + spent_s + further_s + seconds + 1e-9)
        # as if guesses of all texts were lines
        depths = 1 + np.arange(len(ranked) - first) // first
        trust = self.right / (self.claimed + DOUBT)
        sure = np.append(0.0, np.cumsum(ranked[first:] * trust**depths))
        risk_s = self.risk_s - spent_s + known.plain_s(first) * sure
        values[seconds - seconds[0] + further_s > np.maximum(0.0, risk_s)] = 0.0
        # of equally good ones the most rows
        at = int(np.flatnonzero(values >= values.max() - 1e-12)[-1])
        return float(values[at]), int(n_nodes[at])

    # What rounds teach

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from the target's reading of a prompt, at whose end the context has `n_context`
        tokens; None if passes serve several texts."""
        self.prices.see_prompt(report, n_context)
        n_tokens = report.wall_s / self.prices.plain_s(self.n_texts)
        self._grant(n_tokens, beside=n_context is None)
        self.lost -= LATER_SHARE * n_tokens

    def see_reading(self, n_tokens: int, seconds: float) -> None:
        """Learn from the draft's reading of `n_tokens`."""
        known = self.prices
        known.see_reading(n_tokens, seconds)
        # what other processes hold up is not charged to guesses
        self.lost += min(seconds, known.reading_s(n_tokens)) / known.plain_s(self.n_texts)

    def see(self, outcome: RoundOutcome) -> None:
        """Learn from a round."""
        self.prices.see_round(outcome)
        if self.drafts:
            self.see_reading(self.n_unread, outcome.reading_s)
        self.tokens *= FADE
        self.plain_tokens *= FADE
        cost = self._cost(outcome) if outcome.guessed else float(outcome.n_texts)
        self.n_plain += cost
        if outcome.guessed:
            self.tokens += outcome.n_texts + outcome.expected
            self.plain_tokens += cost
            self.lost += cost - outcome.n_tokens
        if outcome.claimed:
            self.claimed = FADE * self.claimed + outcome.claimed
            self.right = FADE * self.right + outcome.right
        self.n_tokens += outcome.n_tokens
        self.lost -= LATER_SHARE * outcome.n_tokens

    def untimed(self, most: int) -> list[int]:
        """Rows of passes, up to `most`, that are worth timing before the first guess."""
        known = self.prices.mean_rows
        return [n for n in self.timed_rows if n <= most and not known[octave(n)]]

    def _cost(self, outcome: RoundOutcome) -> float:
        """Tokens without guesses in the time of a round with guesses, without what other processes
        held up."""
        known, report = self.prices, outcome.report
        token_s = known.plain_s(outcome.n_texts)
        pass_s = float(known.pass_s(outcome.n_rows)) - self.prompts_s
        if report.first_row_stall_s is not None:
            pass_s += report.choice_stall_s - float(known.choice_s(outcome.n_rows))
            if outcome.n_texts == 1:
                # predictable tokens use experts that are in memory more often than others
                token_s += report.first_row_stall_s - float(known.choice_s(1))
        steps_s = min(outcome.growing_s, outcome.draft_steps * known.step_s)
        seconds = min(pass_s, report.wall_s) + steps_s + known.rest_s
        return float(seconds / max(token_s, 1e-9))

    def _grant(self, n_tokens: float, beside: bool) -> None:
        """Give credit for tokens; less if guesses cost the texts that they join."""
        self.granted += START_SHARE * n_tokens * (1.0 - self.spent_now if beside else 1.0)

    # What is remembered

    def state_dict(self) -> dict[str, float]:
        """State for `load_state_dict`."""
        numbers = {name: float(getattr(self, name)) for name in KEPT}
        return self.prices.state_dict() | numbers | {"spent": self.spent_now}

    def load_state_dict(self, numbers: Mapping[str, float]) -> None:
        """Take the state of an earlier run; invalid numbers are limited."""
        self.prices.load_state_dict(numbers)
        for name, most in KEPT.items():
            setattr(self, name, min(most, max(0.0, numbers.get(name, getattr(self, name)))))


KEPT = {"tokens": 1e6, "plain_tokens": 1e6, "spent": 1.0}
"""Numbers that are stored, with their upper bounds."""


def surest(pool: Pool, path: Sequence[int], tokens: Sequence[int]) -> tuple[float, int]:
    """Total confidence of the surest guesses after each node of a path, where they were sure, and
    how many were right; `tokens` followed each."""
    claimed, right = 0.0, 0
    for node, token in zip(path, tokens, strict=True):
        best = max(pool.children(node), key=lambda child: pool.confidence[child], default=None)
        if best is not None and pool.confidence[best] >= SURE:
            claimed += float(pool.confidence[best])
            right += int(pool.token[best]) == token
    return claimed, right
