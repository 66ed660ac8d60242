"""The trees of all texts in one pass: decides which grows next and which nodes are verified.

Knows rounds, but no model. A single text is the case of one tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
        """The rounds whose trees grow; one whose drafter fails leaves."""
        self._failure: Exception | None = None
        """Error of the first round that left."""
        self._planner = planner
        self._clock = clock
        self._check = check
        self._risk_s = risk_s
        self._outcome = RoundOutcome()
        """The pass, as far as the planner learns from it."""

    @property
    def _guesses(self) -> bool:
        return any(round_.grower is not None for round_ in self.rounds)

    def grow(self) -> None:
        """Draft until the planner decides to verify, or no tree can grow within its limits."""
        begun = self._clock()
        most = self._planner.most_nodes(self._risk_s) if self._guesses else 1
        for round_ in self.rounds:
            with self._ending_on_error(round_):
                round_.start(most)
        if not self._guesses:
            return
        grown = self._clock()
        while self.rounds:
            self._check()
            open_nodes = self._open_nodes()
            if not self._planner.grow_on(self._risk_s, self._so_far(open_nodes)):
                break
            if not self._step(open_nodes, is_beside=False):
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
            if not self._step(self._open_nodes(), is_beside=True):
                break
            self._outcome.steps_beside += 1
        if not self.rounds and self._failure is not None:  # no text needs the pass any more
            raise self._failure

    @contextmanager
    def _ending_on_error(self, round_: Round) -> Iterator[None]:
        """Context manager in which an error ends the text of this tree only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised to the text's consumer
            round_.slot.fail(error)
            self._failure = self._failure or error
            self.rounds = [other for other in self.rounds if other is not round_]

    def _open_nodes(self) -> list[list[int]]:
        return [round_.open_nodes for round_ in self.rounds]

    def _step(self, open_nodes: Sequence[list[int]], is_beside: bool) -> bool:
        """Make one draft step in the trees with the most probable open nodes; False if there was
        nothing to extend."""
        ready = self._ready(open_nodes)
        while ready:
            peers = _peers(ready)
            if len(peers) > 1:
                step_ahead([(r.grower, r.draft_part(nodes, is_beside)) for r, nodes in peers])
            grew = False
            for round_, nodes in peers:
                with self._ending_on_error(round_):
                    grew |= round_.step(nodes, is_beside)
            if grew:
                return True
            ready = [one for one in ready if one not in peers]
        return False

    def _ready(self, open_nodes: Sequence[list[int]]) -> list[tuple[Round, list[int]]]:
        """The trees that can grow, with their open nodes."""
        return [one for one in zip(self.rounds, open_nodes, strict=True) if one[1]]

    def _so_far(self, open_nodes: Sequence[list[int]]) -> RoundSoFar:
        """The state of the round, with all trees joined into one."""
        tree, ends = self.rounds[0].tree, [*(open_nodes[0] if open_nodes else ())]
        if len(self.rounds) > 1:
            tree, ends, shift = TokenTree.joined([round_.tree for round_ in self.rounds]), [], 0
            for round_, nodes in zip(self.rounds, open_nodes, strict=False):
                ends += (node + shift if node else ROOT for node in nodes)
                shift += len(round_.tree) - 1
        grower = self.rounds[0].grower
        free_sources = grower.free_sources if grower is not None else ()
        step_depth = grower.step_depth if grower is not None else 1
        n_ends = 1
        if open_nodes and len(self.rounds) > 1:
            n_ends = max(1, len(_peers(self._ready(open_nodes))))
        steps, steps_s = self._outcome.draft_steps, self._outcome.growing_s
        return RoundSoFar(tree, ends, steps, steps_s, free_sources, n_ends, step_depth)


def _peers(ready: Sequence[tuple[Round, list[int]]]) -> Sequence[tuple[Round, list[int]]]:
    """The trees that share the next draft step."""
    if len(ready) < 2:
        return ready
    best = [round_.best(nodes) for round_, nodes in ready]
    return [one for one, its in zip(ready, best, strict=True) if its >= PEER_RATIO * max(best)]
