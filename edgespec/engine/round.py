"""One round of one text: planned, grown, accepted, and measured.

Applies the given rules. `loop` calls its steps in order, `learning` evaluates the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.engine.acceptance import Accepted, accept
from edgespec.engine.drafting.forced import hang_forced
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.outcome import PathNode, RoundOutcome, Tally
from edgespec.engine.planning.decision import RoundPlan, RoundPlanner
from edgespec.engine.planning.pacer import Limits
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import Sampler
from edgespec.engine.settings import RoundRules
from edgespec.engine.slot import Slot
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import ROOT, TokenTree


def begin_round(
    slot: Slot,
    rules: RoundRules,
    planner: RoundPlanner,
    tree: TokenTree,
    request: ActiveRequest,
    n_others: int = 0,
) -> RoundInProgress:
    """Plan a round and let the drafters read the text; `n_others` texts share its pass."""
    slot.check_cancelled()
    begun = slot.clock()
    plan = planner.choose()
    grower = _ready_grower(slot, plan, int(tree.token[ROOT]), request.tally)
    free_hit = False
    if grower is not None:
        slot.catch_up(grower)
    elif not n_others and slot.grower is not None and slot.grower.is_ready:
        free_hit = bool(slot.committed) and slot.grower.dry_run(slot.committed)
    reading_s = slot.clock() - begun
    room = request.transcript.room
    limits = rules.limits(
        n_free=slot.target.info.n_ctx - len(slot.committed),
        room=room,
        n_hidden=planner.n_hidden() if grower else 0,
        min_confidence=planner.min_confidence() if grower else 0.0,
    )
    return RoundInProgress(
        slot=slot,
        grower=grower,
        rules=rules,
        planner=planner,
        plan=plan,
        limits=replace(limits, max_nodes=min(limits.max_nodes, rules.max_nodes - n_others)),
        limits_beside=rules.limits_beside(room),
        begun=begun,
        guesses_before=grower.n_guesses if grower else 0,
        draft_s=reading_s,
        reading_s=reading_s,
        free_hit=free_hit,
    )


def _ready_grower(slot: Slot, plan: RoundPlan, root_token: int, tally: Tally) -> TreeGrower | None:
    """The slot's grower; None if no drafter can guess here or the plan has no guesses."""
    grower = slot.grower
    if grower is None:
        return None
    n_committed = len(slot.committed)
    for source, reason in grower.prepare(slot.committed, root_token):
        tally.note(
            f"the {source} could not follow after {n_committed} tokens ({reason}): "
            "the target went on without it",
            subject=source,
        )
    if grower.is_ready and plan.guesses:
        return grower
    grower.rest()
    return None


@dataclass(slots=True)
class RoundInProgress:
    """A round: its rules and limits, and its costs so far."""

    slot: Slot
    grower: TreeGrower | None
    """None for a round without guesses."""
    rules: RoundRules
    planner: RoundPlanner
    plan: RoundPlan
    limits: Limits
    limits_beside: Limits
    """Limits of growth during the pass."""
    begun: float
    guesses_before: int
    draft_steps: int = 0
    draft_s: float = 0.0
    reading_s: float = 0.0
    free_hit: bool = False
    growing_s: float = 0.0
    """Seconds of the draft steps before the pass, for all texts together."""
    path_nodes: Sequence[PathNode] = ()
    steps_beside: int = 0
    provisional: range = range(0)
    """Keys of the nodes drafted during the pass."""
    failure: Exception | None = None
    """Error of a drafter after acceptance, raised once the accepted tokens were yielded."""

    def start(self, tree: TokenTree, sampler: Sampler) -> TokenTree:
        """Add the guesses that cost no draft step to the tree."""
        if self.grower is None:
            tree = tree.bare()
        hang_forced(tree, sampler, self.limits)
        if self.grower is not None:
            self.grower.begin(tree, self.rules.pacer, self.limits)
        return tree

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes at which the tree can grow by a draft step."""
        return self.grower.open_nodes(tree) if self.grower is not None else []

    def step(self, tree: TokenTree, open_nodes: Sequence[int], is_beside: bool) -> bool:
        """Make and trace one draft step, before the pass or beside it; False if the pacer finds
        nothing to extend.

        The next round uses guesses of a step beside the pass if they are below the new root.
        """
        assert self.grower is not None
        trace, n_before, first_key = self.slot.trace, len(tree), tree.next_key
        limits = self.limits_beside if is_beside else self.limits
        with trace.span(Track.BESIDE if is_beside else Track.ENGINE, "draft step") as span:
            grew = self.grower.step(tree, open_nodes, self.rules.pacer, limits)
            if not grew:
                span.forget()
            elif trace.is_on:
                best = float(tree.cumulative[list(open_nodes)].max())
                span.note(nodes=len(tree) - n_before, tree=len(tree), Tc=round(best, 6))
        if is_beside:
            self.steps_beside += grew
            begin = self.provisional.start if self.provisional else first_key
            self.provisional = range(begin, tree.next_key)
        else:
            self.draft_steps += grew
        return grew

    @property
    def free_sources(self) -> Collection[str]:
        """Sources whose guesses cost no draft step."""
        return self.grower.free_sources if self.grower is not None else ()

    @property
    def step_depth(self) -> int:
        """Number of consecutive nodes that one draft step adds."""
        return self.grower.step_depth if self.grower is not None else 1

    def accept(
        self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray, request: ActiveRequest
    ) -> Accepted:
        """Apply the acceptance rule to the target's logits after `nodes`, [n_nodes, n_vocab]."""
        with self.slot.trace.span(Track.ENGINE, "accept") as span:
            accepted = accept(self.rules.acceptance, tree, nodes, logits, request)
            span.note(accepted=len(accepted.path) - 1)
        return accepted

    def observe_logits(
        self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray, accepted: Accepted
    ) -> None:
        """Pass the target's logits to the drafters, including those after rejected guesses."""
        if self.grower is None:
            return
        self.path_nodes = _path_nodes(tree, accepted, self.planner.stop_rule is not None)
        begun = self.slot.clock()
        self.grower.observe_logits(tree, nodes, logits)
        self.draft_s += self.slot.clock() - begun

    def reroot(self, tree: TokenTree, accepted: Accepted, is_last: bool) -> TokenTree:
        """The tree below the target's own token, with the guesses that it already has there."""
        end, token = accepted.path[-1], accepted.tokens[-1]
        if self.grower is None:
            return tree.after(token)
        root = tree.child(end, token)
        if root is None:
            root = tree.add(end, token, confidence=1.0)
        if is_last:
            return tree.reroot(root)
        self.grower.prepare(self.slot.committed, token)
        if not self.grower.is_ready:
            return tree.reroot(root)
        begun = self.slot.clock()
        try:
            with self.slot.trace.span(Track.ENGINE, "re-root"):
                return self.grower.follow(tree, accepted.path, root, self.rules.pacer)
        except Exception as error:  # noqa: BLE001 - raised after the accepted tokens
            self.failure = error
            return tree.reroot(root).bare()
        finally:
            self.draft_s += self.slot.clock() - begun

    def end(
        self, tree: TokenTree, nodes: Sequence[int], accepted: Accepted, rerooted: TokenTree
    ) -> RoundOutcome:
        """Measure and trace the round after `nodes` of `tree` were verified."""
        outcome = self.outcome(tree, nodes, accepted, rerooted)
        if self.slot.trace.is_on:
            _record(self.slot.trace, outcome, self.begun, self.grower is not None)
            self.slot.trace.flush()
        return outcome

    def outcome(
        self, tree: TokenTree, nodes: Sequence[int], accepted: Accepted, rerooted: TokenTree
    ) -> RoundOutcome:
        """Measurements of the round after `nodes` of `tree` were verified."""
        report = self.slot.target.last_report
        n_line_rows = 0
        if self.rules.computes_lines:
            n_line_rows = max(0, report.n_tokens - len(nodes))
        without_guesses = RoundOutcome(
            n_tokens=len(accepted.tokens),
            accepted=0,
            drafted=0,
            verified=len(nodes) - 1,
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
            first_row_stall_s=report.first_row_stall_s,
            bytes_read=report.bytes_read,
            read_s=report.read_s,
            wall_s=self.slot.clock() - self.begun,
            n_line_rows=n_line_rows,
            reading_s=self.reading_s,
            free_hit=self.free_hit,
        )
        if self.grower is None:
            return without_guesses
        parents = {int(tree.parent[node]) for node in nodes}
        best = max((n for n in nodes if n not in parents), key=lambda n: tree.cumulative[n])
        best_tokens = tree.token[tree.path(best)[1:]].tolist()
        kept = rerooted.key[: len(rerooted)].tolist()
        return replace(
            without_guesses,
            accepted=len(accepted.path) - 1,
            drafted=self.grower.n_guesses - self.guesses_before,
            best_confidence=float(tree.cumulative[best]),
            best_length=len(best_tokens),
            best_correct=common_length(best_tokens, accepted.tokens),
            provisional_drafted=len(self.provisional),
            provisional_kept=sum(key in self.provisional for key in kept),
            draft_steps=self.draft_steps,
            guessed=True,
            growing_s=self.growing_s,
            steps_beside=self.steps_beside,
            path_nodes=self.path_nodes,
            verified_by=Counter(tree.source[node] for node in nodes if node != ROOT),
            accepted_by=Counter(tree.source[node] for node in accepted.path[1:]),
        )


def _record(trace: Trace, outcome: RoundOutcome, begun: float, has_guesses: bool) -> None:
    """Trace a finished round."""
    trace.add(
        Track.ENGINE,
        "round",
        begun,
        begun + outcome.wall_s,
        strategy="tree" if has_guesses else "none",
        tokens=outcome.n_tokens,
        accepted=outcome.accepted,
        verified=outcome.verified,
        drafted=outcome.drafted,
        kept=outcome.provisional_kept,
        confidence=round(outcome.best_confidence, 6),
    )


def _path_nodes(tree: TokenTree, accepted: Accepted, has_stop_rule: bool) -> list[PathNode]:
    """The nodes of the accepted path that had guesses below them."""
    found = []
    for node, token in zip(accepted.path, accepted.tokens, strict=True):
        children = tree.children(node)
        if children:
            claimed = min(1.0, float(tree.confidence[children].sum()))
            best = children[int(tree.confidence[children].argmax())]
            was_right = tree.child(node, token) is not None
            was_first = int(tree.token[best]) == token
            entropy = tree.entropy(node) if has_stop_rule else 0.0
            found.append(PathNode(claimed, was_right, was_first, entropy))
    return found


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
