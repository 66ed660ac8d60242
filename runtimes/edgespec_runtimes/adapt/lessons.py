"""Lessons from kept texts: what the target said after which tokens.

Where no guess was right it is the target's distribution, elsewhere in answers its token (online
speculative decoding, Liu et al., arXiv 2310.07177). Prompts are read and not learnt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgespec.files.training_texts import TrainingText

WINDOW = 512
"""Tokens that are trained together; a longer text is cut."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A part of a text: tokens, and what the target said after some of them."""

    tokens: np.ndarray
    """int64 [length]."""
    places: np.ndarray
    """int64 [n]: indices of the tokens after which the target spoke in the answer."""
    said: np.ndarray
    """int64 [n, k]: tokens of the target's distribution there."""
    shares: np.ndarray
    """float32 [n, k]: their probabilities, which sum to 1."""


def lessons_of(text: TrainingText, n_vocab: int) -> Iterator[Lesson]:
    """The windows of a text in which the target speaks."""
    if max(text.tokens) >= n_vocab:
        return
    tokens = np.array(text.tokens, np.int64)
    corrections = {one.place: one for one in text.corrections}
    width = max((len(one.tokens) for one in text.corrections), default=1)
    for start in range(0, len(tokens) - 1, WINDOW):
        end = min(start + WINDOW, len(tokens) - 1)  # the last token has nothing after it
        places = [place for place in range(start, end) if place + 1 >= text.n_prompt]
        if not places:
            continue
        said = np.zeros((len(places), width), np.int64)
        shares = np.zeros((len(places), width), np.float32)
        for row, place in enumerate(places):
            known = corrections.get(place + 1)
            if known is not None and sum(known.probabilities) > 0 and max(known.tokens) < n_vocab:
                said[row, : len(known.tokens)] = known.tokens
                shares[row, : len(known.tokens)] = known.probabilities
                shares[row] /= shares[row].sum()
            else:
                said[row, 0], shares[row, 0] = tokens[place + 1], 1.0
        yield Lesson(tokens[start:end], np.array(places) - start, said, shares)
