"""What a server keeps of memory for answers with log probabilities. Pure arithmetic on what was
measured."""

from __future__ import annotations

MIB = 1 << 20
ROOM_BYTES = 8 * MIB
"""Of one answer, which is made at a time."""
BYTES_PER_TOKEN, BYTES_PER_ENTRY = 1_200, 950
"""That an answer takes as values and as JSON: a token, and its own log probability and each of the
others."""
BYTES_PER_CHARACTER = 13
"""Most bytes of a character of an answer: as text, as JSON and as UTF-8."""
MOST_CHARACTERS = ROOM_BYTES // BYTES_PER_CHARACTER
"""Characters of several choices that are kept whole."""


def most_tokens(n_others: int) -> int:
    """Of an answer that is kept whole, with so many log probabilities beside each token's own."""
    return ROOM_BYTES // (BYTES_PER_TOKEN + BYTES_PER_ENTRY * (1 + n_others))
