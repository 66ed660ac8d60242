"""One round as it runs: what it may use, what it has cost so far, and its outcome in the end.

It measures and judges nothing: the engine fills it in, the rules read its outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.engine.acceptance import Accepted
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.pacer import Limits, Pacer
from edgespec.engine.strategy import Strategy
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport


@dataclass(slots=True)
class RoundInProgress:
    """What one round may use, and what it has cost so far."""

    grower: TreeGrower | None
    pacer: Pacer
    limits: Limits
    deepest: int
    """No token of the text can stand deeper than this: it would be past its end."""
    begun: float
    guesses_before: int
    draft_steps: int = 0
    draft_s: float = 0.0
    provisional: range = range(0)
    """Keys of the nodes drafted beside the pass."""

    def outcome(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        accepted: Accepted,
        rerooted: TokenTree,
        n_tokens: int,
        report: PassReport,
        now: float,
    ) -> RoundOutcome:
        """What the round cost and brought: `nodes` of `tree` were verified, `n_tokens` yielded."""
        if self.grower is None:
            return self._without_guesses(n_tokens, report, now)
        parents = {int(tree.parent[node]) for node in nodes}
        best = max((n for n in nodes if n not in parents), key=lambda n: tree.cumulative[n])
        best_tokens = tree.token[tree.path(best)[1:]].tolist()
        kept = rerooted.key[: len(rerooted)].tolist()
        return RoundOutcome(
            n_tokens=n_tokens,
            accepted=min(len(accepted.path) - 1, n_tokens),
            drafted=self.grower.n_guesses - self.guesses_before,
            verified=len(nodes) - 1,
            best_confidence=float(tree.cumulative[best]),
            best_length=len(best_tokens),
            best_correct=common_length(best_tokens, accepted.tokens(tree)),
            provisional_drafted=len(self.provisional),
            provisional_kept=sum(key in self.provisional for key in kept),
            draft_steps=self.draft_steps,
            draft_s=self.draft_s,
            passes=report.passes,
            pass_s=report.wall_s,
            stall_s=report.stall_s,
            choice_stall_s=report.choice_stall_s,
            bytes_read=report.bytes_read,
            wall_s=now - self.begun,
            missed=accepted.path[-1] in parents,
            verified_by=Counter(tree.source[node] for node in nodes if node != ROOT),
            accepted_by=Counter(tree.source[node] for node in accepted.path[1 : 1 + n_tokens]),
        )

    def _without_guesses(self, n_tokens: int, report: PassReport, now: float) -> RoundOutcome:
        """What a pass over nothing but the root cost, beside which nothing was drafted."""
        return RoundOutcome(
            n_tokens=n_tokens,
            accepted=0,
            drafted=0,
            verified=0,
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
            wall_s=now - self.begun,
        )


def record_round(
    trace: Trace, outcome: RoundOutcome, round_: RoundInProgress, way: Strategy
) -> None:
    """The span of a round that is over."""
    trace.add(
        Track.ENGINE,
        "round",
        round_.begun,
        round_.begun + outcome.wall_s,
        way=way.value if round_.grower else Strategy.NONE.value,
        tokens=outcome.n_tokens,
        accepted=outcome.accepted,
        verified=outcome.verified,
        drafted=outcome.drafted,
        kept=outcome.provisional_kept,
        confidence=round(outcome.best_confidence, 6),
    )


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
