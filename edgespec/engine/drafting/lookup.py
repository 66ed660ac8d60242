"""Guesses from the text itself: the tokens that followed earlier occurrences of its last tokens.

Like Saxena's prompt lookup and llama.cpp's n-gram modes, but with several continuations, at any
node of a tree. Owns an index of the text; knows no model.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.free import Answer, FreeDrafter
from edgespec.tree import TokenTree

MIN_MATCH = 2
"""Fewest matching tokens of an occurrence."""
MAX_MATCH = 24
"""Most tokens that are compared."""
N_CANDIDATES = 4
FADING = 0.9
"""Weight of an occurrence relative to the next later one."""


class TextIndex:
    """Index of token pairs with about nine bytes per token, as hash chains like those of LZ77.

    A table has the last position of each pair, and each position links to the previous one of the
    same pair. Positions are then compared backwards.
    """

    n_heads = 1 << 15
    max_places = 24
    """Most positions that one search compares, the last ones first."""
    max_full_matches = 3
    """Number of matches of `MAX_MATCH` tokens that ends a search."""

    def __init__(self) -> None:
        self.tokens: array[int] = array("i")
        self._before: array[int] = array("i")
        """For each position the previous one with the same hash, or -1."""
        self._heads: array[int] = array("i", [-1]) * self.n_heads

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        place = len(self.tokens)
        self.tokens.append(token)
        if place == 0:
            self._before.append(-1)
            return
        head = self._head(self.tokens[place - 1], token)
        self._before.append(self._heads[head])
        self._heads[head] = place

    def truncate(self, n_tokens: int) -> None:
        for place in range(len(self.tokens) - 1, n_tokens - 1, -1):
            if place:
                head = self._head(self.tokens[place - 1], self.tokens[place])
                self._heads[head] = self._before[place]
        del self.tokens[n_tokens:]
        del self._before[n_tokens:]

    def places(self, words: Sequence[int]) -> list[tuple[int, int]]:
        """Earlier positions at which the text ended like `words`, the last ones first, each with
        the number of matching tokens."""
        if len(words) < MIN_MATCH:
            return []
        tokens, found, n_whole = self.tokens, [], 0
        place = self._heads[self._head(words[-2], words[-1])]
        for _ in range(self.max_places):
            if place < 0:
                break
            alike = 0
            for back, word in enumerate(reversed(words)):
                if back > place or tokens[place - back] != word:
                    break
                alike += 1
            if alike >= MIN_MATCH and place + 1 < len(tokens):
                found.append((place, alike))
                n_whole += alike == MAX_MATCH
                if n_whole == self.max_full_matches:
                    break
            place = self._before[place]
        return found

    def _head(self, one: int, other: int) -> int:
        return (one * 0x9E3779B1 ^ other * 0x85EBCA6B) >> 7 & (self.n_heads - 1)


_BY_LENGTH = {2: 0.3, 3: 0.4, 4: 0.5, 6: 0.6, 10: 0.7, MAX_MATCH: 0.8}
"""Prior hit rates by the upper bound of the number of matching tokens."""
KINDS = {f"{most}{end}": rate for most, rate in _BY_LENGTH.items() for end in ("", "!")}


def kind_of(alike: int, is_sole: bool) -> str:
    """Kind of an answer with `alike` matching tokens; `is_sole` if there is one continuation."""
    most = next(most for most in _BY_LENGTH if alike <= most)
    return f"{most}{'!' if is_sole else ''}"


def voted(places: Sequence[tuple[int, int]]) -> tuple[int, list[int], list[float]]:
    """The most tokens that match, the best next tokens, and their shares of all votes.

    `places` are pairs of a next token and the number of matching tokens before it; each further
    matching token doubles the weight of a vote.
    """
    most = max(alike for _, alike in places)
    votes: dict[int, float] = {}
    for rank, (token, alike) in enumerate(places):
        votes[token] = votes.get(token, 0.0) + 0.5 ** (most - alike) * FADING**rank
    best = sorted(votes, key=lambda token: -votes[token])[:N_CANDIDATES]
    total = sum(votes.values())
    return most, best, [votes[token] / total for token in best]


def weighed(answer: Answer, luck: Sequence[float]) -> Answer:
    """`answer` with shares and odds by the `luck` of its tokens in the draw, best first."""
    if not any(luck):
        return answer
    tau = FreeDrafter.temperature
    weights = [share * math.exp(one / tau) for share, one in zip(answer.shares, luck, strict=True)]
    total = sum(weights)
    best = sorted((n for n, weight in enumerate(weights) if weight), key=lambda n: -weights[n])
    return answer._replace(
        tokens=[answer.tokens[n] for n in best],
        shares=[weights[n] / total for n in best],
        odds=total / sum(answer.shares),
    )


class LookupDrafter(FreeDrafter):
    """Implements `Drafter` with the text so far, prompt included."""

    source = "lookup"
    kinds = KINDS

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._index = TextIndex()
        self._words: dict[int, tuple[int, ...]] = {}
        """Last tokens of the text down to a node, by key of the node."""

    def answer(self, tree: TokenTree, node: int) -> Answer | None:
        words, depth = self._words_at(tree, node), int(tree.depth[node])
        return self._answer_after(words, depth, self._branch(tree, node))

    def _answer_after(
        self, words: Sequence[int], n_ahead: int, ahead: Sequence[int] = ()
    ) -> Answer | None:
        places = self._index.places(words)
        if not places:
            return None
        said = [(self._index.tokens[place + 1], alike) for place, alike in places]
        alike, tokens, shares = voted(said)
        kind = kind_of(alike, is_sole=len(tokens) == 1)
        luck = self._sampler.luck(tokens, n_ahead, ahead)
        return weighed(Answer(kind, tokens, shares), luck)

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Ignore the logits: only picked tokens are part of the text."""

    def is_behind(self, committed: Sequence[int]) -> bool:
        return len(self._index) < len(committed)

    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        for node in path:
            self._index.append(int(tree.token[node]))

    def catch_up(self, committed: Sequence[int]) -> None:
        self.rest()
        for token in committed[len(self._index) :]:
            self._index.append(token)

    def dry_run(self, committed: Sequence[int]) -> Opinion | None:
        self.rest()
        n_read, opinion = len(self._index), None
        for n_ahead, token in enumerate(committed[n_read:], n_read - len(committed)):
            if n_ahead == -1:
                answer = self._answer_after(self._index.tokens[-MAX_MATCH:], n_ahead)
                opinion = self._opinion(answer)
            self._index.append(token)
        return opinion

    def rewind(self, n_tokens: int) -> None:
        self.rest()
        self._index.truncate(min(n_tokens, len(self._index)))

    def rest(self) -> None:
        super().rest()
        self._words.clear()

    def _words_at(self, tree: TokenTree, node: int) -> tuple[int, ...]:
        """The last tokens of the text down to `node`."""
        below: list[int] = []
        while node >= 0 and int(tree.key[node]) not in self._words:
            below.append(node)
            node = int(tree.parent[node])
        text = self._index.tokens
        words = tuple(text[-MAX_MATCH:]) if node < 0 else self._words[int(tree.key[node])]
        for node in reversed(below):
            words = (*words[1 - MAX_MATCH :], int(tree.token[node]))
            self._words[int(tree.key[node])] = words
        return words
