"""The trees of all texts in one pass: decides which grows next and which nodes are verified.

Knows rounds, but no model. A single text is the case of one tree.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from edgespec.concurrency.worker import Running
from edgespec.engine.drafting.model import ModelDrafter, step_ahead
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.passes import Logits
from edgespec.engine.planning.decision import RoundPlan, RoundPlanner
from edgespec.engine.planning.pacer import Limits
from edgespec.engine.round import RoundInProgress
from edgespec.engine.sampling import Sampler
from edgespec.engine.settings import RoundRules
from edgespec.engine.stop_rules import RoundSoFar
from edgespec.tracing.spans import Track
from edgespec.tree import ROOT, TokenTree

PEER_RATIO = 0.5
"""Texts share a draft step if their best open nodes have at least this share of the highest
cumulative confidence."""


@dataclass(eq=False, slots=True)
class GrowingTree:
    """One text's round and its tree."""

    round: RoundInProgress
    tree: TokenTree
    sampler: Sampler

    def start(self) -> None:
        self.tree = self.round.start(self.tree, self.sampler)

    @property
    def open_nodes(self) -> list[int]:
        return self.round.open_nodes(self.tree)

    def next_step(
        self, open_nodes: Sequence[int], is_beside: bool
    ) -> tuple[ModelDrafter, TokenTree, list[int]] | None:
        """The draft model, tree and nodes of the next draft step; None without a draft model."""
        grower, round_ = self.round.grower, self.round
        limits = round_.limits_beside if is_beside else round_.limits
        if grower is None:
            return None
        return grower.next_step(self.tree, open_nodes, round_.rules.pacer, limits)


class OpenTree(NamedTuple):
    """A tree that can grow."""

    best: float
    """Highest cumulative confidence of its open nodes."""
    growth: GrowingTree
    nodes: list[int]
    """Open nodes."""


def _peers(ends: Sequence[OpenTree]) -> list[OpenTree]:
    """The trees that share the next draft step."""
    least = PEER_RATIO * max((end.best for end in ends), default=0.0)
    return [end for end in ends if end.best >= least]


class Forest:
    """The growing trees of one pass."""

    def __init__(
        self, growths: Sequence[GrowingTree], rules: RoundRules, planner: RoundPlanner
    ) -> None:
        self._growths = [*growths]
        self.failed: dict[GrowingTree | None, Exception] = {}
        """Trees that left the pass because of an error, with the error."""
        self._rules = rules
        self._planner = planner
        self._plan = growths[-1].round.plan if growths else RoundPlan(False)
        self._draft_steps = 0
        self._growing_s = 0.0
        self._expected = 0.0

    @property
    def _guesses(self) -> bool:
        return any(growth.round.grower is not None for growth in self._growths)

    @property
    def growths(self) -> Sequence[GrowingTree]:
        return self._growths

    def grow(self, clock: Callable[[], float], check: Callable[[], None]) -> None:
        """Draft until the planner decides to verify, or no tree can grow within its limits."""
        begun = clock()
        for growth in self.growths:
            with self._alone(growth):
                growth.start()
        if not self._guesses:
            return
        grown = clock()
        while self._growths:
            check()
            open_nodes = self._open_nodes()
            if not self._planner.grow_on(self._plan, self._so_far(open_nodes)):
                break
            if not self._step(open_nodes, is_beside=False):
                break
            self._draft_steps += 1
            self._growing_s = clock() - grown
        end = clock()
        for growth in self._growths:
            if growth.round.grower is not None:
                growth.round.draft_s += end - begun
                growth.round.growing_s = self._growing_s
        if self._growths:
            trace = self._growths[0].round.slot.trace
            trace.add(Track.ENGINE, "grow", begun, end, steps=self._draft_steps)

    def select(self, max_nodes: int) -> list[list[int]]:
        """Nodes of each tree to verify, ascending, at most `max_nodes` in total."""
        if not self._growths:
            return []
        plan = self._plan if self._guesses else replace(self._plan, risk_s=math.inf)
        point = self._planner.best(plan, self._so_far([]))
        self._expected = point.accepted
        if self._growths[0].tree.draws:
            [growth] = self._growths
            return [list(range(min(len(growth.tree), growth.round.limits.max_nodes)))]
        n_others = len(self._growths) - 1
        most = min(point.n_rows + n_others, max_nodes)
        candidates = [
            growth.round.rules.pacer.select(growth.tree, self._limited(growth, most - n_others))
            for growth in self._growths
        ]
        if not n_others:
            return candidates
        trees = [growth.tree for growth in self._growths]
        return share_out(trees, candidates, most, self._rules.max_branches)

    def beside(
        self, n_rows: int, check: Callable[[], None]
    ) -> Callable[[Running[Logits]], None] | None:
        """A callback that drafts during the pass over `n_rows`; None if that does not pay or the
        guesses are not proven to."""
        is_trial = any(growth.round.plan.is_trial for growth in self._growths)
        if is_trial or not self._guesses or not self._planner.drafts_beside(n_rows):
            return None
        return partial(self._grow_beside, check)

    def outcome(self, outcomes: Sequence[RoundOutcome], prepared_s: float) -> RoundOutcome:
        """The rounds of a pass combined into one, for the planner; `prepared_s` are the seconds
        since all rounds were planned and their drafts had read the text."""
        return replace(
            outcomes[0],
            n_texts=len(outcomes),
            n_prompt_rows=self._planner.n_prompt_rows,
            n_tokens=sum(o.n_tokens for o in outcomes),
            accepted=sum(o.accepted for o in outcomes),
            drafted=sum(o.drafted for o in outcomes),
            verified=sum(o.verified for o in outcomes),
            provisional_drafted=sum(o.provisional_drafted for o in outcomes),
            provisional_kept=sum(o.provisional_kept for o in outcomes),
            draft_steps=self._draft_steps,
            steps_beside=sum(o.steps_beside for o in outcomes),
            reading_s=sum(o.reading_s for o in outcomes),
            guessed=any(o.guessed for o in outcomes),
            growing_s=self._growing_s,
            expected=self._expected,
            path_nodes=[node for o in outcomes for node in o.path_nodes],
            verified_by=sum((Counter(o.verified_by) for o in outcomes), Counter()),
            accepted_by=sum((Counter(o.accepted_by) for o in outcomes), Counter()),
            wall_s=prepared_s + sum(o.reading_s for o in outcomes),
        )

    def _grow_beside(self, check: Callable[[], None], running: Running[Logits]) -> None:
        """Grow the trees while the pass verifies them."""
        while not running.done:
            check()
            if not self._step(self._open_nodes(), is_beside=True):
                break
        if not self._growths:  # no text needs the pass any more
            raise next(iter(self.failed.values()))

    @contextmanager
    def _alone(self, growth: GrowingTree) -> Iterator[None]:
        """Context manager in which an error ends the text of this tree only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised to the text's consumer
            self.failed[growth] = error
            self._growths = [other for other in self._growths if other is not growth]

    def _open_nodes(self) -> list[list[int]]:
        return [growth.open_nodes for growth in self._growths]

    def _step(self, open_nodes: Sequence[list[int]], is_beside: bool) -> bool:
        """Make one draft step in the trees with the most probable open nodes; False if there was
        nothing to extend."""
        if len(self._growths) == 1:
            ready = [OpenTree(1.0, self._growths[0], open_nodes[0])]
        else:
            ready = self._ready(open_nodes)
        while ready:
            peers = _peers(ready)
            if len(peers) > 1:
                steps = [growth.next_step(nodes, is_beside) for _, growth, nodes in peers]
                step_ahead([one for one in steps if one is not None])
            grew = False
            for _, growth, nodes in peers:
                with self._alone(growth):
                    grew |= growth.round.step(growth.tree, nodes, is_beside)
            if grew:
                return True
            ready = [one for one in ready if one not in peers]
        return False

    def _ready(self, open_nodes: Sequence[Sequence[int]]) -> list[OpenTree]:
        return [
            OpenTree(float(growth.tree.cumulative[list(nodes)].max()), growth, list(nodes))
            for growth, nodes in zip(self._growths, open_nodes, strict=True)
            if nodes
        ]

    def _so_far(self, open_nodes: Sequence[Sequence[int]]) -> RoundSoFar:
        """The state of the round, with all trees joined into one."""
        tree, ends = self._growths[0].tree, [*(open_nodes[0] if open_nodes else ())]
        if len(self._growths) > 1:
            tree, ends, shift = TokenTree.joined([growth.tree for growth in self._growths]), [], 0
            for growth, nodes in zip(self._growths, open_nodes, strict=False):
                ends += (node + shift if node else ROOT for node in nodes)
                shift += len(growth.tree) - 1
        free_sources = self._growths[0].round.free_sources
        step_depth = self._growths[0].round.step_depth
        n_ends = 1
        if open_nodes and len(self._growths) > 1:
            n_ends = max(1, len(_peers(self._ready(open_nodes))))
        return RoundSoFar(
            tree, ends, self._draft_steps, self._growing_s, free_sources, n_ends, step_depth
        )

    def _limited(self, growth: GrowingTree, most: int) -> Limits:
        limits = growth.round.limits
        return replace(limits, max_nodes=max(1, min(limits.max_nodes, most)))


def share_out(
    trees: Sequence[TokenTree],
    candidates: Sequence[Sequence[int]],
    max_nodes: int,
    max_branches: int,
) -> list[list[int]]:
    """Nodes of each tree to verify, ascending: all roots, then the most probable `candidates`.

    The first branch of each text does not count towards `max_branches`.
    """
    selected: list[set[int]] = [{ROOT} for _ in trees]
    extended: list[set[int]] = [set() for _ in trees]
    ranked = [
        (-float(tree.cumulative[node]), n, node)
        for n, (tree, nodes) in enumerate(zip(trees, candidates, strict=True))
        for node in nodes
        if node != ROOT
    ]
    heapq.heapify(ranked)
    n_nodes, n_branches = len(trees), 1
    while ranked and n_nodes < max_nodes:
        _, n, node = heapq.heappop(ranked)
        parent = int(trees[n].parent[node])
        if parent not in selected[n]:
            continue
        if parent in extended[n]:
            if n_branches == max_branches:
                continue
            n_branches += 1
        extended[n].add(parent)
        selected[n].add(node)
        n_nodes += 1
    return [sorted(nodes) for nodes in selected]
