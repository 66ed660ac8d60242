"""Account of guesses: what they brought of late, and what they may still cost.

Amounts are in tokens, that is in the time of a token without guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgespec.engine.drafting.state_store import kept

FADE = 0.95
"""Factor by which a round reduces the weight of earlier ones."""
START_TOKENS = 64
"""Tokens of a text from which guesses have credit, beside its prompt."""
START_SHARE, LATER_SHARE = 0.05, 0.002
"""Guesses may cost a text 5 % of these, and 0.2 % of all."""
LINE = 7
"""Guesses of the line that is followed, verified or not: a pass over eight rows is timed before the
first guess."""


@dataclass(slots=True)
class Credit:
    """Gain of guesses of late, the pause after those that did not pay, and what they may
    still cost.

    Earlier texts leave less to a text if guesses have cost more in them than they saved.
    """

    first_pause: ClassVar[int] = 2
    max_pause: ClassVar[int] = 64

    tokens: float = kept(1e6)
    """Fading sum of the tokens of rounds with guesses."""
    plain_tokens: float = kept(1e6)
    """Fading sum of the tokens that would have taken their time without guesses."""
    rounds: float = kept(1e6)
    """Fading number of these rounds."""
    spent: float = kept(1.0)
    """Cost of guesses in the earlier texts of the pair, until saved again, as a share of what they
    may cost a text of 64 tokens or more: all texts together may lose as much."""

    pause: int = 0
    """Rounds without guesses that the latest pause lasted; 0 while guesses pay."""
    pause_left: int = 0
    """Rounds left of it."""
    unread: int = 0
    """Committed tokens that the draft has not read."""
    proven: float = 0.0
    """Tokens that lines of the surest guesses saved of late, or would have saved if they had been
    verified; at most what guesses may cost."""
    n_right: int = 0
    """Right guesses so far of the latest of these lines."""
    is_free: bool = False
    """True while guesses that cost no draft step are right without others."""
    n_tokens: int = 0
    """Tokens generated so far."""
    room: int = 0
    """Most tokens that may follow."""
    granted: float = 0.0
    """Tokens that guesses might cost the texts at work if earlier ones had lost none."""
    lost: float = 0.0
    """Tokens lost by guesses so far, beyond the share of all that they may cost; negative if they
    saved time."""

    @property
    def speedup(self) -> float:
        """Tokens of rounds with guesses to those without in the same time; 1 before the first."""
        return (self.tokens + 1) / (self.plain_tokens + 1)

    @property
    def pays(self) -> bool:
        """True if guesses were faster than none."""
        return self.speedup > 1

    @property
    def left(self) -> float:
        """Tokens that guesses may still cost the texts at work."""
        return (1.0 - self.spent) * self.granted - self.lost

    @property
    def spent_now(self) -> float:
        """`spent` with the texts at work."""
        text_credit = max(self.granted, START_SHARE * START_TOKENS)
        return min(1.0, max(0.0, self.spent + self.lost / text_credit))

    def begin_text(self, n_unread: int, room: int, beside: bool = False) -> None:
        """Begin a text of at most `room` tokens, `n_unread` of which the draft has yet to read,
        alone or `beside` others."""
        if not beside:
            self.spent = self.spent_now
            self.pause = self.pause_left = self.n_tokens = self.room = 0
            self.n_right, self.is_free = 0, False
            self.granted = self.lost = self.proven = 0.0
        self.unread, self.room = n_unread, self.room + room
        self.grant(min(START_TOKENS, room), beside)

    def grant(self, n_tokens: float, beside: bool) -> None:
        """Give credit for tokens; less if guesses cost the texts that they join."""
        share = 1.0 - self.spent_now if beside else 1.0
        self.granted += START_SHARE * n_tokens * share

    def follow_line(self, is_right: bool, price: float) -> None:
        """Count the surest guess for a token, verified or not, at a price in tokens: a wrong one
        makes the rest of its line worthless."""
        self.prove(1 - price if is_right else -price * (LINE - self.n_right))
        self.n_right = (self.n_right + 1) % LINE if is_right else 0

    def prove(self, saved: float) -> None:
        """Count the tokens that a line saved, or would have saved."""
        self.proven = max(0.0, min(self.granted, self.proven + saved))

    def see_guesses(self, tokens: float, plain_tokens: float) -> None:
        """Count the tokens of a round with guesses and those without in its time; pause if guesses
        do not pay."""
        self.fade()
        self.tokens += tokens
        self.plain_tokens += plain_tokens
        self.rounds += 1
        pause = min(self.max_pause, max(self.first_pause, 2 * self.pause))
        self.pause = self.pause_left = 0 if self.pays else pause

    def fade(self, share: float = FADE) -> None:
        """Give earlier rounds with guesses less weight."""
        self.tokens *= share
        self.plain_tokens *= share
        self.rounds *= share
