"""The trees of all texts in one pass: decides which grows next and which nodes are verified.

Knows rounds, but no model. A single text is the case of one tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from edgespec.concurrency.worker import Running
from edgespec.engine.drafting.grower import step_ahead
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.round import Round
from edgespec.ports import PassPart
from edgespec.rules.pacer import nodes_to_verify
from edgespec.rules.stop_rules import RoundSoFar
from edgespec.tracing.spans import Track
from edgespec.tree import ROOT, TokenTree

Logits = list[np.ndarray]
"""Logits of each part of a pass, float32 [nodes, n_vocab]."""
Growing = tuple[Round, list[int]]
"""A round whose tree can grow, and its open nodes."""
PEER_RATIO = 0.5
"""Texts share a draft step if their best open nodes have at least this share of the highest
cumulative confidence."""


class Forest:
    """The growing trees of one pass."""

    def __init__(
        self,
        rounds: Sequence[Round],
        planner: RoundPlanner,
        risk_s: float,
        clock: Callable[[], float],
        check: Callable[[], None],
    ) -> None:
        """Guesses may cost at most `risk_s`. `check` is called between draft steps and may
        raise."""
        self.rounds = [*rounds]
        """The rounds whose trees grow; one whose drafter fails leaves, as its text ends."""
        self._all_rounds = rounds
        self._planner = planner
        self._clock = clock
        self._check = check
        self._risk_s = risk_s
        self._guesses = any(round_.grower is not None for round_ in rounds)
        self._outcome = RoundOutcome()
        """The pass, as far as the planner learns from it."""

    def grow(self) -> None:
        """Draft until the planner decides to verify, or no tree can grow within its limits."""
        begun = self._clock()
        most = self._planner.most_nodes(self._risk_s) if self._guesses else 1
        for round_ in self._all_rounds:
            with round_.slot.ending_on_error():
                round_.start(most)
            if round_.slot.round is None:
                self._leave(round_)
        if not self._guesses:
            return
        grown = self._clock()
        while self.rounds:
            self._check()
            growing = self._growing()
            if not self._planner.grow_on(self._risk_s, self._so_far(growing)):
                break
            if not self._step(growing, is_beside=False):
                break
            self._outcome.draft_steps += 1
            self._outcome.growing_s = self._clock() - grown
        end = self._clock()
        for round_ in self.rounds:
            if round_.grower is not None:
                round_.outcome.draft_s += end - begun
        if self.rounds:
            trace = self.rounds[0].slot.trace
            trace.add(Track.ENGINE, "grow", begun, end, steps=self._outcome.draft_steps)

    def parts(self, max_nodes: int) -> list[PassPart]:
        """The parts of a pass that verify the trees, at most `max_nodes` in total."""
        return [
            PassPart(round_.slot.number, round_.tree, nodes)
            for round_, nodes in zip(self.rounds, self._select(max_nodes), strict=True)
        ]

    def _select(self, max_nodes: int) -> list[list[int]]:
        """Nodes of each tree to verify, ascending, at most `max_nodes` in total."""
        if not self.rounds:
            return []
        if not self._guesses and all(len(round_.tree) == 1 for round_ in self.rounds):
            return [[ROOT] for _ in self.rounds]
        risk_s = self._risk_s if self._guesses else math.inf
        point = self._planner.best(risk_s, self._so_far([]))
        self._outcome.expected = point.accepted
        if self.rounds[0].tree.draws:
            [round_] = self.rounds
            return [list(range(min(len(round_.tree), round_.limits.max_nodes)))]
        trees, limits = [r.tree for r in self.rounds], [r.limits for r in self.rounds]
        most = min(point.n_rows + len(trees) - 1, max_nodes)
        return nodes_to_verify(trees, limits, most, self.rounds[0].slot.limits.max_branches)

    def beside(self, n_rows: int) -> Callable[[Running[Logits]], None] | None:
        """A callback that drafts during the pass over `n_rows`; None if that does not pay or the
        guesses are not proven to."""
        if not self._guesses or not self._planner.drafts_beside(n_rows):
            return None
        return self._grow_beside

    def outcome(
        self, outcomes: Sequence[RoundOutcome], prepared_s: float, n_rows: int
    ) -> RoundOutcome:
        """The rounds of a pass over `n_rows` combined into one, as far as the planner learns from
        it; `prepared_s` are the seconds since all rounds were planned and their drafts had read the
        text."""
        of_pass, first = self._outcome, outcomes[0]
        of_pass.report, of_pass.surest = first.report, first.surest
        of_pass.n_rows = max(n_rows, first.report.n_tokens)
        of_pass.n_texts = len(outcomes)
        of_pass.n_tokens = sum(outcome.n_tokens for outcome in outcomes)
        of_pass.reading_s = sum(outcome.reading_s for outcome in outcomes)
        of_pass.guessed = any(outcome.guessed for outcome in outcomes)
        of_pass.wall_s = prepared_s + of_pass.reading_s
        return of_pass

    def _grow_beside(self, running: Running[Logits]) -> None:
        """Grow the trees while the pass verifies them."""
        while not running.done:
            self._check()
            if not self._step(self._growing(), is_beside=True):
                break
            self._outcome.steps_beside += 1
        if not self.rounds and (failure := self._all_rounds[0].slot.request.failure):
            raise failure  # no text needs the pass any more

    def _leave(self, round_: Round) -> None:
        """Go on without a text that ended."""
        self.rounds.remove(round_)
        self._guesses = any(other.grower is not None for other in self.rounds)

    def _growing(self) -> list[Growing]:
        """The trees that can grow."""
        return [(round_, nodes) for round_ in self.rounds if (nodes := round_.open_nodes)]

    def _step(self, growing: Sequence[Growing], is_beside: bool) -> bool:
        """Make one draft step in the trees with the most probable open nodes; False if there was
        nothing to extend."""
        while growing:
            peers = _peers(growing)
            if len(peers) > 1:
                step_ahead([(r.grower, r.draft_part(nodes, is_beside)) for r, nodes in peers])
            grew = False
            for round_, nodes in peers:
                with round_.slot.ending_on_error():
                    grew |= round_.step(nodes, is_beside)
                if round_.slot.round is None:
                    self._leave(round_)
            if grew:
                return True
            growing = [one for one in growing if one not in peers]
        return False

    def _so_far(self, growing: Sequence[Growing]) -> RoundSoFar:
        """The state of the round, with all trees joined into one."""
        first, open_nodes, begin_of, begin = self.rounds[0], [], {}, 0
        for round_ in self.rounds:
            begin_of[round_.slot] = begin
            begin += len(round_.tree) - 1
        for round_, nodes in growing:
            open_nodes += [node and node + begin_of[round_.slot] for node in nodes]
        is_alone, grower = len(self.rounds) == 1, first.grower
        return RoundSoFar(
            tree=first.tree if is_alone else TokenTree.joined([r.tree for r in self.rounds]),
            open_nodes=open_nodes,
            draft_steps=self._outcome.draft_steps,
            draft_s=self._outcome.growing_s,
            free_sources=grower.free_sources if grower is not None else (),
            n_ends=max(1, len(_peers(growing))),
            step_depth=grower.step_depth if grower is not None else 1,
        )


def _peers(growing: Sequence[Growing]) -> Sequence[Growing]:
    """The trees that share the next draft step."""
    if len(growing) < 2:
        return growing
    best = [round_.best(nodes) for round_, nodes in growing]
    return [one for one, its in zip(growing, best, strict=True) if its >= PEER_RATIO * max(best)]
