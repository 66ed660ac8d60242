"""One round as it runs: its tree grows, what is worth a pass is verified, and it is counted.

Does what the rules say, and measures it; which rules they are, and what they learn from the
outcome, is the engine's business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgespec.concurrency.worker import Running
from edgespec.engine.acceptance import Accepted
from edgespec.engine.decision import Chances, Point, RoundPlan, RoundPlanner
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.outcome import Reached, RoundOutcome
from edgespec.engine.pacer import Limits, Pacer
from edgespec.engine.pair import Pair
from edgespec.engine.stop_rules import RoundSoFar
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport


@dataclass(slots=True)
class RoundInProgress:
    """What one round may use, and what it has cost so far."""

    pair: Pair
    grower: TreeGrower | None
    """None for a round without guesses."""
    pacer: Pacer
    planner: RoundPlanner
    plan: RoundPlan
    limits: Limits
    limits_beside: Limits
    """Of what grows beside the pass."""
    begun: float
    guesses_before: int
    draft_steps: int = 0
    draft_s: float = 0.0
    reading_s: float = 0.0
    growing_s: float = 0.0
    imagined: Point | None = None
    """The best round that the tree would have allowed, whatever the credit was."""
    reached: Sequence[Reached] = ()
    steps_beside: int = 0
    provisional: range = range(0)
    """Keys of the nodes drafted beside the pass."""
    failure: Exception | None = None
    """Of a drafter, while it followed what was accepted: that stands and is still to be yielded."""

    def grow(self, tree: TokenTree) -> None:
        """Draft while the planner finds it worth a step and growth within the limits is of use."""
        if self.grower is None:
            return
        clock = self.pair.clock
        begun = clock()
        self.grower.begin(tree, self.pacer, self.limits)
        grown = clock()
        while True:
            self.pair.check_cancelled()
            open_nodes = self.grower.open_nodes(tree)
            if not self.planner.grows_on(self.plan, self._so_far(tree, open_nodes)):
                break
            if not self._step(tree, open_nodes, self.grower, self.limits, Track.ENGINE):
                break
            self.draft_steps += 1
            self.growing_s = clock() - grown
        end = clock()
        self.draft_s += end - begun
        self.pair.trace.add(Track.ENGINE, "grow", begun, end, steps=self.draft_steps)

    def select(self, tree: TokenTree) -> list[int]:
        """The nodes that are worth their place in the pass."""
        plan = self.plan if self.grower else replace(self.plan, credit_s=math.inf)
        point = self.imagined = self.planner.best(plan, self._so_far(tree, ()))
        if self.grower and math.isfinite(self.plan.credit_s):
            open_nodes = self.grower.open_nodes(tree)
            self.imagined = self.planner.imagined(self.plan, self._so_far(tree, open_nodes))
        limits = replace(self.limits, max_nodes=min(self.limits.max_nodes, point.n_rows))
        return self.pacer.select(tree, limits)

    def _so_far(self, tree: TokenTree, open_nodes: Sequence[int]) -> RoundSoFar:
        free_sources = self.grower.free_sources if self.grower is not None else ()
        spent_s = self.growing_s
        return RoundSoFar(tree, open_nodes, self.draft_steps, spent_s, free_sources)

    def verify(self, tree: TokenTree, nodes: Sequence[int]) -> np.ndarray:
        """Logits [len(nodes), n_vocab] of one target pass, beside which the draft may go on."""
        goes_on = self.grower is not None and self.planner.drafts_beside(len(nodes))
        grower = self.grower if goes_on else None
        beside = None if grower is None else partial(self._grow_beside, tree, grower)
        with self.pair.trace.span(Track.ENGINE, "verify").note(nodes=len(nodes)):
            return self.pair.evaluate(tree, nodes, beside)

    def witness(
        self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray, accepted: Accepted
    ) -> None:
        """Let the drafters see what the target said, also after guesses that do not stand."""
        if self.grower is None:
            return
        self.reached = _reached(tree, accepted)
        begun = self.pair.clock()
        self.grower.witness(tree, nodes, logits)
        self.draft_s += self.pair.clock() - begun

    def reroot(self, tree: TokenTree, accepted: Accepted, is_last: bool) -> TokenTree:
        """The tree below the target's own token, with the growth that already hangs there."""
        end, token = accepted.path[-1], accepted.tokens[-1]
        if self.grower is None:
            return tree.after(token)
        root = tree.child(end, token)
        if root is None:
            root = tree.add(end, token, confidence=1.0)
        if is_last:
            return tree.reroot(root)
        self.grower.prepare(self.pair.committed, token)
        if not self.grower.is_ready:
            return tree.reroot(root)
        begun = self.pair.clock()
        try:
            with self.pair.trace.span(Track.ENGINE, "re-root"):
                return self.grower.follow(tree, accepted.path, root, self.pacer)
        except Exception as error:  # noqa: BLE001 - raised after the tokens that stand
            self.failure = error
            return tree.reroot(root).bare()
        finally:
            self.draft_s += self.pair.clock() - begun

    def outcome(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        accepted: Accepted,
        rerooted: TokenTree,
    ) -> RoundOutcome:
        """What the round cost and brought: `nodes` of `tree` were verified."""
        report, now = self.pair.target.last_report, self.pair.clock()
        n_tokens = len(accepted.tokens)
        if self.grower is None:
            return self._without_guesses(n_tokens, len(nodes), report, now)
        parents = {int(tree.parent[node]) for node in nodes}
        best = max((n for n in nodes if n not in parents), key=lambda n: tree.cumulative[n])
        best_tokens = tree.token[tree.path(best)[1:]].tolist()
        kept = rerooted.key[: len(rerooted)].tolist()
        return RoundOutcome(
            n_tokens=n_tokens,
            accepted=len(accepted.path) - 1,
            drafted=self.grower.n_guesses - self.guesses_before,
            verified=len(nodes) - 1,
            best_confidence=float(tree.cumulative[best]),
            best_length=len(best_tokens),
            best_correct=common_length(best_tokens, accepted.tokens),
            provisional_drafted=len(self.provisional),
            provisional_kept=sum(key in self.provisional for key in kept),
            draft_steps=self.draft_steps,
            draft_s=self.draft_s,
            passes=report.passes,
            pass_s=report.wall_s,
            stall_s=report.stall_s,
            choice_stall_s=report.choice_stall_s,
            bytes_read=report.bytes_read,
            read_s=report.read_s,
            wall_s=now - self.begun,
            guessed=True,
            growing_s=self.growing_s,
            reading_s=self.reading_s,
            steps_beside=self.steps_beside,
            claimed=self.imagined.claimed if self.imagined else 0.0,
            expected_s=self.growing_s + (self.imagined.seconds if self.imagined else 0.0),
            reached=self.reached,
            verified_by=Counter(tree.source[node] for node in nodes if node != ROOT),
            accepted_by=Counter(tree.source[node] for node in accepted.path[1:]),
        )

    def _without_guesses(
        self, n_tokens: int, n_rows: int, report: PassReport, now: float
    ) -> RoundOutcome:
        """What a pass over nothing but the root cost, beside which nothing was drafted."""
        return RoundOutcome(
            n_tokens=n_tokens,
            accepted=0,
            drafted=0,
            verified=n_rows - 1,
            best_confidence=1.0,
            best_length=0,
            best_correct=0,
            provisional_drafted=0,
            provisional_kept=0,
            draft_steps=0,
            draft_s=self.draft_s,
            passes=report.passes,
            pass_s=report.wall_s,
            stall_s=report.stall_s,
            choice_stall_s=report.choice_stall_s,
            bytes_read=report.bytes_read,
            read_s=report.read_s,
            wall_s=now - self.begun,
        )

    def _grow_beside(
        self, tree: TokenTree, grower: TreeGrower, target_pass: Running[np.ndarray]
    ) -> None:
        """Grow the tree that is being verified, past what was selected, while the pass runs.

        What it adds is worth something if the accepted path leads there: the next round starts
        with it.
        """
        first_key = tree.next_key
        while not target_pass.done:
            self.pair.check_cancelled()
            open_nodes = grower.open_nodes(tree)
            if not self._step(tree, open_nodes, grower, self.limits_beside, Track.BESIDE):
                break
            self.steps_beside += 1
        self.provisional = range(first_key, tree.next_key)

    def _step(
        self,
        tree: TokenTree,
        open_nodes: Sequence[int],
        grower: TreeGrower,
        limits: Limits,
        track: Track,
    ) -> bool:
        """One step of a drafter, recorded. False if nothing was to do, which is no step."""
        n_before = len(tree)
        trace = self.pair.trace
        with trace.span(track, "draft step") as span:
            grew = grower.step(tree, open_nodes, self.pacer, limits)
            if not grew:
                span.forget()
            elif trace.is_on:
                best = float(tree.cumulative[list(open_nodes)].max())
                span.note(nodes=len(tree) - n_before, tree=len(tree), Tc=round(best, 6))
        return grew


def record_round(trace: Trace, outcome: RoundOutcome, round_: RoundInProgress) -> None:
    """The span of a round that is over."""
    trace.add(
        Track.ENGINE,
        "round",
        round_.begun,
        round_.begun + outcome.wall_s,
        strategy="tree" if round_.grower else "none",
        tokens=outcome.n_tokens,
        accepted=outcome.accepted,
        verified=outcome.verified,
        drafted=outcome.drafted,
        kept=outcome.provisional_kept,
        confidence=round(outcome.best_confidence, 6),
    )


def _reached(tree: TokenTree, accepted: Accepted) -> list[Reached]:
    """How the guesses after each node of the accepted path fared."""
    found = []
    for node, token in zip(accepted.path, accepted.tokens, strict=True):
        children = tree.children(node)
        if children:
            claimed = min(1.0, float(tree.confidence[children].sum()))
            is_sure = node != ROOT and bool(tree.confidence[node] >= Chances.sure)
            found.append(Reached(is_sure, claimed, tree.child(node, token) is not None))
    return found


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
