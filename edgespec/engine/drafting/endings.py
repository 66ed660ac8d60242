"""Base of drafters that look up a text's last tokens: the text, and its end at each node.

Subclasses say where these tokens are looked up.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from edgespec.engine.drafting.free import Answer, FreeDrafter
from edgespec.tree import TokenTree


class EndingDrafter(FreeDrafter):
    """The part of `Drafter` that is alike where a node's answer depends on the last words alone."""

    n_words: ClassVar[int]
    """Most that are looked up."""
    n_candidates = 4

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._words: dict[int, tuple[int, ...]] = {}
        """End of the text down to each node that was looked up, by the node's key."""

    @property
    @abstractmethod
    def text(self) -> array[int]:
        """The committed tokens."""

    @abstractmethod
    def look_up(self, words: Sequence[int]) -> Answer | None:
        """Candidates for the token after a text that ends in `words`."""

    def answer(self, tree: TokenTree, node: int) -> Answer | None:
        return self.look_up(self._words_at(tree, node))

    def witness(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Ignore the logits: only picked tokens are part of the text."""

    def is_behind(self, committed: Sequence[int]) -> bool:
        return len(self.text) < len(committed)

    def rest(self) -> None:
        super().rest()
        self._words.clear()

    def _words_at(self, tree: TokenTree, node: int) -> tuple[int, ...]:
        """The last words of the text down to `node`."""
        below: list[int] = []
        while node >= 0 and int(tree.key[node]) not in self._words:
            below.append(node)
            node = int(tree.parent[node])
        words = tuple(self.text[-self.n_words :]) if node < 0 else self._words[int(tree.key[node])]
        for node in reversed(below):
            words = (*words[-self.n_words + 1 :], int(tree.token[node]))
            self._words[int(tree.key[node])] = words
        return words


def voted(
    places: Sequence[tuple[int, int]], fading: float, n_candidates: int
) -> tuple[int, list[int], list[float]]:
    """The next token by the votes of `places`, each a token and the number of tokens before it that
    agree.

    The most words in common, the best tokens, and their shares of all votes. Each word less in
    common counts half, and each place as `fading` of the one before it.
    """
    most = max(alike for _, alike in places)
    votes: dict[int, float] = {}
    for rank, (token, alike) in enumerate(places):
        votes[token] = votes.get(token, 0.0) + 0.5 ** (most - alike) * fading**rank
    best = sorted(votes, key=lambda token: -votes[token])[:n_candidates]
    total = sum(votes.values())
    return most, best, [votes[token] / total for token in best]
