"""Training samples from kept texts: tokens, and the target's predictions after them.

Where no guess was accepted, the prediction is the target's distribution, elsewhere in answers its
token (online speculative decoding, Liu et al., arXiv 2310.07177). Prompts are only context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgespec.files.training_texts import TrainingText

WINDOW = 512
"""Most tokens of a sample; a longer text is cut."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A training sample: tokens of a text, and the target's predictions after some of them."""

    tokens: np.ndarray
    """Tokens, int64 [length]."""
    places: np.ndarray
    """Indices of the tokens that precede tokens of the answer, int64 [n]."""
    said: np.ndarray
    """Tokens of the target's distribution after each of `places`, int64 [n, k]."""
    shares: np.ndarray
    """Probabilities of these tokens, which sum to 1, float32 [n, k]."""


def lessons_of(text: TrainingText, n_vocab: int) -> Iterator[Lesson]:
    """The samples of a text, for windows that contain a part of the answer."""
    if max(text.tokens) >= n_vocab:
        return
    tokens = np.array(text.tokens, np.int64)
    corrections = {one.place: one for one in text.corrections}
    width = max((len(one.tokens) for one in text.corrections), default=1)
    for start in range(0, len(tokens) - 1, WINDOW):
        end = min(start + WINDOW, len(tokens) - 1)  # there is no prediction after the last token
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
