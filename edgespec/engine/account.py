"""The account of one text: what guesses have cost it, and what they may cost it.

A frozen value in tokens, that is in the time of a token without guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgespec.engine.outcome import RoundOutcome

START_TOKENS, START_SHARE, LATER_SHARE = 64, 0.05, 0.01
"""Guesses may cost 5 % of the first 64 tokens, and 1 % of all."""
FREE_READING = 0.05
"""Share of the target's time for the prompt in which the draft's reading of it is not charged."""


@dataclass(frozen=True, slots=True)
class TextAccount:
    """Cost of guesses to a text so far."""

    unread: int = 0
    """Committed tokens that the draft has not read."""
    n_tokens: int = 0
    """Tokens generated so far."""
    room: int = 0
    """Most tokens that may follow."""
    start: float = 0.0
    """Tokens that guesses may cost from the start."""
    prompt_s: float = 0.0
    """Seconds in which the target read the prompt."""
    lost: float = 0.0
    """Tokens lost by guesses so far; negative if they saved time."""

    @classmethod
    def of(cls, n_unread: int, room: int) -> TextAccount:
        """The account of a new text of at most `room` tokens, `n_unread` of which the draft has yet
        to read."""
        return cls(n_unread, room=room, start=START_SHARE * min(START_TOKENS, room))

    @property
    def left(self) -> float:
        """Tokens that guesses may still cost."""
        return self.start + LATER_SHARE * self.n_tokens - self.lost

    def expected_tokens(self, n_texts: int) -> int:
        """Tokens that will probably follow: as many as there are, at least `START_TOKENS`."""
        return min(self.room, max(START_TOKENS * n_texts, self.n_tokens))

    def unpaid_s(self, reading_s: float) -> float:
        """Part of the draft's reading time that is charged."""
        return max(0.0, reading_s - FREE_READING * self.prompt_s)

    def with_text(self, other: TextAccount) -> TextAccount:
        """The account after one more text joined."""
        room, start = self.room + other.room, self.start + other.start
        return replace(self, unread=other.unread, room=room, start=start)

    def with_round(self, outcome: RoundOutcome) -> TextAccount:
        """The account after a round, without what it cost."""
        return replace(
            self,
            unread=0 if outcome.guessed else self.unread + outcome.n_tokens,
            n_tokens=self.n_tokens + outcome.n_tokens,
            room=max(0, self.room - outcome.n_tokens),
        )
