"""Training samples: windows of texts, and what the target said in them.

Prompts are only context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from edgespec.values import TrainingText

WINDOW = 512
"""Most tokens of a sample; a longer text is cut."""


class Lesson(NamedTuple):
    """Tokens of a text, and the target's distribution after some of them."""

    tokens: np.ndarray
    """Tokens, int64 [length]."""
    places: np.ndarray
    """Indices of the tokens that precede tokens of the answer, int64 [n]."""
    said: np.ndarray
    """Tokens of the target's distribution after each of `places`, int64 [n, k]."""
    shares: np.ndarray
    """Probabilities of these tokens, which sum to 1, float32 [n, k]."""


def lessons_of(text: TrainingText, n_vocab: int) -> Iterator[Lesson]:
    """The samples of a text, for windows that contain a part of the answer; none if the text has
    tokens that the draft does not know."""
    tokens, top = np.array(text.tokens, np.int64), np.array(text.said)
    if tokens.max() >= n_vocab or not len(top):
        return
    said, shares = top[..., 0].astype(np.int64), np.exp(top[..., 1]).astype(np.float32)
    shares[said >= n_vocab] = 0.0
    said[said >= n_vocab] = 0
    shares /= shares.sum(axis=1, keepdims=True)
    for start in range(0, len(tokens) - 1, WINDOW):
        end = min(start + WINDOW, len(tokens) - 1)  # there is no prediction after the last token
        first = max(start, text.n_prompt - 1)
        if first < end:
            rows = slice(first + 1 - text.n_prompt, end + 1 - text.n_prompt)
            places = np.arange(first - start, end - start)
            yield Lesson(tokens[start:end], places, said[rows], shares[rows])
