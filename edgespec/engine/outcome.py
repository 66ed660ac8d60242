"""Costs and yields of a round, and the totals of a generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgespec.pool import Pool
from edgespec.settings.rule_names import AcceptanceName, Keeps
from edgespec.values import (
    PassReport,
    RoundStats,
    SourceStats,
    SpeculationStats,
    Timings,
    total_sources,
)

SURE = 0.5
"""Least confidence of a guess that counts, verified or not."""
NO_PASS = PassReport()
"""Report of a round before its pass."""


@dataclass(slots=True)
class RoundOutcome:
    """The measurements of one round, filled in by it. Counts of guesses leave out the root."""

    report: PassReport = NO_PASS
    """Cost of the pass, of all texts together."""
    n_tokens: int = 0
    """Tokens appended to the text."""
    verified: int = 0
    """Guesses evaluated by the target."""
    wall_s: float = 0.0
    """Seconds of the whole round."""
    accepted: int = 0
    """Accepted guesses."""
    drafted: int = 0
    """Guesses added to the tree, before and during the pass."""
    provisional_drafted: int = 0
    """Guesses added during the pass."""
    provisional_kept: int = 0
    """Those below the new root."""
    draft_s: float = 0.0
    """Seconds of drafting that did not overlap the pass."""
    reading_s: float = 0.0
    """Seconds in which the draft read committed tokens that it had not read."""
    guessed: bool = False
    """True if the round used drafters."""
    claimed: float = 0.0
    """Total confidence of the surest guess for each token, verified or not, of at least `SURE`."""
    right: int = 0
    """Number of these that were right."""
    sources: Sequence[SourceStats] = ()
    """Verified and accepted guesses by source."""

    # What the planner gets in addition, of a pass over the trees of all texts

    n_texts: int = 1
    n_rows: int = 1
    """Nodes and prompt tokens, or more if the target computes each branch as a sequence of its
    own."""
    draft_steps: int = 0
    """Draft steps before the pass."""
    growing_s: float = 0.0
    """Seconds of these steps."""
    steps_beside: int = 0
    """Draft steps during the pass."""
    expected: float = 0.0
    """Expected number of accepted guesses."""

    @property
    def stats(self) -> RoundStats:
        """The measurements that are part of a generation's result."""
        return RoundStats(
            n_tokens=self.n_tokens,
            accepted=self.accepted,
            verified=self.verified,
            passes=self.report.passes,
            draft_s=self.draft_s,
            pass_s=self.report.wall_s,
            stall_s=self.report.stall_s,
            wall_s=self.wall_s,
            bytes_read=self.report.bytes_read,
        )


@dataclass(slots=True)
class Tally:
    """Measurements and notes of one generation, collected while it runs."""

    prompt_s: float = 0.0
    reused_tokens: int = 0
    saved_passes: int = 0
    dropped_tokens: int = 0
    shift_s: float = 0.0
    """Seconds of reading the remaining text again after context shifts."""
    outcomes: list[RoundOutcome] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """Notes for the user by subject."""
    acceptance: str = AcceptanceName.EXACT_REPLAY
    keeps: str = Keeps.DRAWS
    """Acceptance rule and its guarantee: the target's draws, its distribution, or neither."""
    first_token_s: float | None = None
    """Seconds until the first token, if the pass over the end of the prompt gave it."""

    def read_prompt(self, seconds: float, gave_token: bool) -> None:
        """Record that the prompt was read for `seconds` more, which perhaps gave the first
        token."""
        self.prompt_s += seconds
        if gave_token and self.first_token_s is None:
            self.first_token_s = self.prompt_s

    def note(self, text: str, subject: str = "") -> None:
        """Add a note for the user, at most one for each subject."""
        self.notes.setdefault(subject or text, text)

    def speculation(self) -> SpeculationStats:
        rounds = self.outcomes
        return SpeculationStats(
            rounds=len(rounds),
            target_passes=sum(outcome.report.passes for outcome in rounds),
            drafted=sum(outcome.drafted for outcome in rounds),
            verified=sum(outcome.verified for outcome in rounds),
            accepted=sum(outcome.accepted for outcome in rounds),
            provisional_drafted=sum(outcome.provisional_drafted for outcome in rounds),
            provisional_kept=sum(outcome.provisional_kept for outcome in rounds),
            accepted_lengths=tuple(outcome.accepted for outcome in rounds),
            draft_s=sum(outcome.draft_s for outcome in rounds),
            round_costs=tuple(outcome.stats for outcome in rounds),
            acceptance=str(self.acceptance),
            keeps=str(self.keeps),
            sources=total_sources(outcome.sources for outcome in rounds),
        )

    def timings(self) -> Timings:
        """Times of the prompt and of decoding: rounds and context shifts, without the caller's own
        time between tokens.

        The rate is that of the tokens of rounds.
        """
        decode_s = self.shift_s + sum(outcome.wall_s for outcome in self.outcomes)
        first_token_s = self.first_token_s
        if first_token_s is None:
            first_token_s = self.prompt_s + sum(outcome.wall_s for outcome in self.outcomes[:1])
        n_tokens = sum(outcome.n_tokens for outcome in self.outcomes)
        return Timings(
            prompt_s=self.prompt_s,
            first_token_s=first_token_s,
            decode_s=decode_s,
            tokens_per_s=n_tokens / decode_s if decode_s > 0 else 0.0,
        )


def add_to(pass_: RoundOutcome, outcome: RoundOutcome) -> None:
    """Add the round of another text to those of the same pass."""
    pass_.report, pass_.n_texts = outcome.report, pass_.n_texts + 1
    for name in ("n_tokens", "verified", "accepted", "reading_s", "claimed", "right"):
        setattr(pass_, name, getattr(pass_, name) + getattr(outcome, name))


def source_stats(
    pool: Pool, verified: Sequence[int], accepted: Sequence[int]
) -> Sequence[SourceStats]:
    """Verified and accepted guesses by source."""
    n_accepted = Counter(pool.source[node] for node in accepted)
    n_verified = Counter(pool.source[node] for node in verified)
    return [SourceStats(name, n, n_accepted[name]) for name, n in n_verified.items()]


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
