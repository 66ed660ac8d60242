"""Costs and yields of a round, and the totals of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.values import (
    PassReport,
    RoundStats,
    SourceStats,
    SpeculationStats,
    Timings,
    total_sources,
)


@dataclass(slots=True)
class RoundOutcome:
    """The measurements of the rounds of all texts in one pass, filled in by it. Counts of guesses
    leave out the roots."""

    report: PassReport = field(default_factory=PassReport)
    n_texts: int = 1
    n_rows: int = 1
    """Nodes and prompt tokens, or more if the target computes each branch as a sequence of its
    own."""
    n_tokens: int = 0
    """Tokens appended to the texts."""
    verified: int = 0
    """Guesses evaluated by the target."""
    expected: float = 0.0
    """Expected number of accepted guesses."""
    guessed: bool = False
    """True if guesses were made or verified."""
    claimed: float = 0.0
    """Total confidence of the surest guess for each token, verified or not, if it is sure."""
    right: int = 0
    """Number of these that were right."""
    draft_steps: int = 0
    """Draft steps before the pass."""
    growing_s: float = 0.0
    """Seconds of these steps."""
    lone_steps_s: list[float] = field(default_factory=list)
    """Seconds of those over one node."""
    further_nodes: int = 0
    """Nodes of the others beyond the first of each."""
    steps_beside: int = 0
    """Draft steps during the pass."""
    reading_s: float = 0.0
    """Seconds in which drafts read committed tokens that they had not read."""
    wall_s: float = 0.0
    """Seconds from reading to accepting."""


@dataclass(slots=True)
class Tally:
    """Measurements and notes of one generation, collected while it runs."""

    prompt_s: float = 0.0
    reused_tokens: int = 0
    read_tokens: int = 0
    """Prompt tokens that passes have read."""
    again_s: float = 0.0
    """Seconds of computing again what was set back."""
    rounds: list[RoundStats] = field(default_factory=list)
    drafted: int = 0
    """Guesses added to the tree, before and during passes."""
    provisional_drafted: int = 0
    """Guesses added during passes."""
    provisional_kept: int = 0
    """Those below the next root."""
    sources: list[SourceStats] = field(default_factory=list)
    """Verified and accepted guesses of each round and source."""
    notes: dict[str, str] = field(default_factory=dict)
    """Notes for the user by subject."""
    first_token_s: float | None = None
    """Seconds until the first token, if the pass over the end of the prompt gave it."""

    def note(self, text: str, subject: str = "") -> None:
        """Add a note for the user, at most one for each subject."""
        self.notes.setdefault(subject or text, text)

    def speculation(self) -> SpeculationStats:
        rounds = self.rounds
        return SpeculationStats(
            rounds=len(rounds),
            target_passes=sum(each.passes for each in rounds),
            drafted=self.drafted,
            verified=sum(each.verified for each in rounds),
            accepted=sum(each.accepted for each in rounds),
            provisional_drafted=self.provisional_drafted,
            provisional_kept=self.provisional_kept,
            accepted_lengths=tuple(each.accepted for each in rounds),
            draft_s=sum(each.draft_s for each in rounds),
            round_costs=tuple(rounds),
            sources=total_sources([self.sources]),
        )

    def timings(self) -> Timings:
        """Times of the prompt and of decoding, without the caller's own time between tokens.

        The rate is that of the tokens of rounds.
        """
        decode_s = self.again_s + sum(each.wall_s for each in self.rounds)
        first_token_s = self.first_token_s
        if first_token_s is None:
            first_token_s = self.prompt_s + sum(each.wall_s for each in self.rounds[:1])
        n_tokens = sum(each.n_tokens for each in self.rounds)
        return Timings(
            prompt_s=self.prompt_s,
            first_token_s=first_token_s,
            decode_s=decode_s,
            tokens_per_s=n_tokens / decode_s if decode_s > 0 else 0.0,
        )
