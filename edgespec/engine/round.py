"""One round of a slot: planned, grown, accepted, and measured.

Applies the given rules. `loop` calls its steps in order, `planning` evaluates the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.drafting.grower import TreeGrower, hang_forced
from edgespec.engine.outcome import RoundOutcome, surest
from edgespec.ports import PassPart
from edgespec.rules.tree_limits import Limits
from edgespec.tracing.spans import Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import SourceStats, TokenEvent

if TYPE_CHECKING:
    from edgespec.engine.slot import Slot


@dataclass(eq=False, slots=True)
class Round:
    """A round: its limits, its tree, and what it cost and brought so far."""

    slot: Slot
    tree: TokenTree
    begun: float = 0.0
    limits: Limits = field(init=False)
    """Limits of growth before the pass."""
    grower: TreeGrower | None = None
    """None for a round without guesses."""
    guesses_before: int = 0
    """Guesses of the grower before the round."""
    outcome: RoundOutcome = field(default_factory=RoundOutcome)
    provisional: range = range(0)
    """Keys of the nodes drafted during the pass."""
    path: Sequence[int] = ()
    """Nodes after which tokens were picked: the root first, each the parent of the next."""
    events: Sequence[TokenEvent] = ()
    """The tokens picked after each node of the path: accepted guesses, and the target's own one."""

    def let_guess(self, guesses: bool, free_only: bool) -> None:
        """Have the drafters read the text, if the round has `guesses`: all of them or, with
        `free_only`, those without a model; otherwise have them rest."""
        slot, outcome = self.slot, self.outcome
        slot.request.check_cancelled()
        begun = slot.clock()
        self.grower = grower = _ready_grower(slot, guesses, free_only)
        if grower is not None:
            slot.catch_up(grower)
            outcome.guessed, self.guesses_before = True, grower.n_guesses
        outcome.draft_s = outcome.reading_s = slot.clock() - begun

    def begin(self, n_others: int) -> None:
        """Limit the round's tree; `n_others` texts share the pass."""
        slot = self.slot
        slot.request.check_cancelled()
        self.limits = slot.limits.before_pass(
            n_free=slot.target.info.n_ctx - len(slot.committed),
            room=slot.request.transcript.room,
            n_others=n_others,
        )

    @property
    def tokens(self) -> list[int]:
        """The tokens picked after each node of the path."""
        return [event.token for event in self.events]

    def start(self, most: int) -> None:
        """Add the guesses that cost no draft step to the tree, about as many as make `most` nodes:
        what a pass cannot verify is not looked up."""
        if self.grower is None:
            self.tree = self.tree.bare()
        hang_forced(self.tree, self.slot.request.sampler, self.limits)
        if self.grower is not None:
            limits = replace(self.limits, max_nodes=min(most, self.limits.max_nodes))
            self.grower.begin(self.tree, limits)

    @property
    def open_nodes(self) -> list[int]:
        """Nodes at which the tree can grow by a draft step."""
        return self.grower.open_nodes(self.tree) if self.grower is not None else []

    def best(self, nodes: Sequence[int]) -> float:
        """Highest cumulative confidence of nodes."""
        return float(self.tree.cumulative[list(nodes)].max())

    def draft_part(self, open_nodes: Sequence[int], is_beside: bool) -> PassPart | None:
        """The next draft step as a part of a pass of the draft model; None without one."""
        if self.grower is None:
            return None
        return self.grower.draft_part(self.tree, open_nodes, self._limits_of_step(is_beside))

    def step(self, open_nodes: Sequence[int], is_beside: bool) -> bool:
        """Make and trace one draft step, before the pass or beside it; False if the pacer finds
        nothing to extend.

        The next round uses guesses of a step beside the pass if they are below the new root.
        """
        assert self.grower is not None
        tree, trace = self.tree, self.slot.trace
        n_before, first_key = len(tree), tree.next_key
        limits = self._limits_of_step(is_beside)
        with trace.span(Track.BESIDE if is_beside else Track.ENGINE, "draft step") as span:
            grew = self.grower.step(tree, open_nodes, limits)
            if not grew:
                span.forget()
            elif trace.is_on:
                best = round(self.best(open_nodes), 6)
                span.note(nodes=len(tree) - n_before, tree=len(tree), Tc=best)
        if is_beside:
            begin = self.provisional.start if self.provisional else first_key
            self.provisional = range(begin, tree.next_key)
        return grew

    def accept(self, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Apply the acceptance rule to the target's logits after `nodes`, [n_nodes, n_vocab], and
        measure the pass."""
        with self.slot.trace.span(Track.ENGINE, "accept") as span:
            rule, request = self.slot.acceptance, self.slot.request
            self.path, self.events = request.accept(rule, self.tree, nodes, logits)
            span.note(accepted=len(self.path) - 1)
            if self.slot.trace.is_on:
                best = self.tree.best_branch(nodes)
                span.note(confidence=round(float(self.tree.cumulative[best]), 6))
        self._measure(nodes)

    def observe_logits(self, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Pass the target's logits to the drafters, including those after rejected guesses."""
        if self.grower is not None:
            begun = self.slot.clock()
            self.grower.observe_logits(self.tree, nodes, logits)
            self.outcome.draft_s += self.slot.clock() - begun

    def reroot(self) -> TokenTree:
        """The tree below the target's own token, with the guesses that it already has there."""
        tree, end, token = self.tree, self.path[-1], self.events[-1].token
        if self.grower is None:
            return tree.after(token)
        root = tree.child(end, token)
        if root is None:
            root = tree.add(end, token, confidence=1.0)
        if self.slot.request.transcript.is_finished:
            return tree.reroot(root)
        self.grower.prepare(self.slot.committed, token, self.grower.free_only)
        if not self.grower.is_ready:
            return tree.reroot(root)
        begun = self.slot.clock()
        try:
            with self.slot.trace.span(Track.ENGINE, "re-root"):
                return self.grower.follow(tree, self.path, root)
        except Exception as error:  # noqa: BLE001 - raised after the accepted tokens
            self.slot.fail(error)
            return tree.reroot(root).bare()
        finally:
            self.outcome.draft_s += self.slot.clock() - begun

    def end(self, rerooted: TokenTree) -> RoundOutcome:
        """Complete the measurements, and trace the round; `rerooted` is the next round's tree."""
        grower, trace, outcome = self.grower, self.slot.trace, self.outcome
        if grower is not None:
            outcome.drafted = grower.n_guesses - self.guesses_before
        if self.provisional:
            kept = rerooted.key[: len(rerooted)].tolist()
            outcome.provisional_kept = sum(key in self.provisional for key in kept)
        outcome.wall_s = self.slot.clock() - self.begun
        if trace.is_on:
            trace.add(
                Track.ENGINE,
                "round",
                self.begun,
                self.begun + outcome.wall_s,
                strategy="tree" if grower is not None else "none",
                tokens=outcome.n_tokens,
                accepted=outcome.accepted,
                verified=outcome.verified,
                drafted=outcome.drafted,
                kept=outcome.provisional_kept,
            )
            trace.flush()
        return outcome

    def _limits_of_step(self, is_beside: bool) -> Limits:
        if not is_beside:
            return self.limits
        return self.slot.limits.during_pass(self.slot.request.transcript.room)

    def _measure(self, nodes: Sequence[int]) -> None:
        """Measure the pass over `nodes` of the tree."""
        tree, outcome = self.tree, self.outcome
        outcome.report = self.slot.target.last_report
        outcome.n_tokens = len(self.events)
        outcome.verified = len(nodes) - 1
        if self.grower is None:
            return
        outcome.accepted = len(self.path) - 1
        outcome.provisional_drafted = len(self.provisional)
        outcome.surest = surest(tree, self.path, self.tokens)
        verified = Counter(tree.source[node] for node in nodes if node != ROOT)
        accepted = Counter(tree.source[node] for node in self.path[1:])
        outcome.sources = [SourceStats(name, n, accepted[name]) for name, n in verified.items()]
        planner = self.slot.planner
        if (rule := planner.stop_rule) is not None:
            planner.stop_rule = rule.observe(tree, nodes, self.path, self.tokens)


def _ready_grower(slot: Slot, guesses: bool, free_only: bool) -> TreeGrower | None:
    """The slot's grower; None if no drafter can guess here or the round has no guesses."""
    grower = slot.grower
    if grower is None:
        return None
    n_committed = len(slot.committed)
    obstacles = grower.prepare(slot.committed, int(slot.tree.token[ROOT]), free_only)
    for source, reason in obstacles.items():
        slot.request.tally.note(
            f"the {source} could not follow after {n_committed} tokens ({reason}): "
            "the target went on without it",
            subject=source,
        )
    if grower.is_ready and guesses:
        return grower
    grower.rest()
    return None
