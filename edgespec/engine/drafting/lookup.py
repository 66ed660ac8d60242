"""Guesses from the text itself and from recent ones of the same client: the tokens that followed
earlier occurrences of its last tokens.

Like Saxena's prompt lookup and llama.cpp's n-gram modes, but with several continuations, at any
node of a tree. Owns an index of the text; knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.free import FreeDrafter
from edgespec.engine.drafting.text_index import MAX_MATCH, History, RecentTexts, TextIndex
from edgespec.tree import TokenTree

N_CANDIDATES = 4
FADING = 0.9
"""Weight of an occurrence relative to the next later one."""


_BY_LENGTH = {2: 0.3, 3: 0.4, 4: 0.5, 6: 0.6, 10: 0.7, MAX_MATCH: 0.8}
"""Prior hit rates by the upper bound of the number of matching tokens."""
_OTHERS = "other "
"""Prefix of kinds of answers from other texts."""
KINDS = {
    f"{origin}{most}{end}": rate
    for most, rate in _BY_LENGTH.items()
    for end in ("", "!")
    for origin in ("", _OTHERS)
}


def kind_of(alike: int, is_sole: bool, is_others: bool = False) -> str:
    """Kind of an answer with `alike` matching tokens; `is_sole` if there is one continuation,
    `is_others` if it is from another text."""
    most = next(most for most in _BY_LENGTH if alike <= most)
    return f"{_OTHERS if is_others else ''}{most}{'!' if is_sole else ''}"


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


def weighed(opinion: Opinion, luck: Sequence[float]) -> Opinion | None:
    """`opinion` with shares and chance by the `luck` of its tokens in the draw, best first; None if
    none of them is possible."""
    if not any(luck):
        return opinion
    shares, chance = opinion.probabilities, opinion.chance
    weights = [
        share * math.exp(one / opinion.temperature) for share, one in zip(shares, luck, strict=True)
    ]
    best = sorted((n for n, weight in enumerate(weights) if weight), key=lambda n: -weights[n])
    if not best:
        return None
    total = sum(weights)
    odds = total / sum(shares) * chance
    return opinion._replace(
        tokens=[opinion.tokens[n] for n in best],
        probabilities=[weights[n] / total for n in best],
        chance=odds / (1.0 - chance + odds),
    )


class LookupDrafter(FreeDrafter):
    """Implements `Drafter` with the text so far, prompt included, and with recent texts."""

    source = "lookup"
    kinds = KINDS

    def __init__(
        self, eog_tokens: frozenset[int] = frozenset(), history: History | None = None
    ) -> None:
        """`history` has recent texts, among them those of other slots."""
        super().__init__(eog_tokens)
        self._history = history
        self._recent: RecentTexts | None = None
        self._index = TextIndex()
        self._words: dict[int, tuple[int, ...]] = {}
        """Last tokens of the text down to a node, by key of the node."""

    def begin_client(self, client: str) -> None:
        self._recent = None if self._history is None else self._history.of(client)

    def end_text(self, new: Sequence[int]) -> None:
        if self._recent is not None:
            self._recent.add(new)

    def answer(self, tree: TokenTree, node: int) -> Opinion | None:
        words, depth = self._words_at(tree, node), int(tree.depth[node])
        return self._answer_after(words, depth, self._branch(tree, node))

    def _answer_after(
        self, words: Sequence[int], n_ahead: int, ahead: Sequence[int] = ()
    ) -> Opinion | None:
        said = [
            (self._index.tokens[place + 1], alike) for place, alike in self._index.places(words)
        ]
        longest = max((alike for _, alike in said), default=0)
        is_others = False
        if self._recent is not None and longest < MAX_MATCH:
            others = self._recent.after(words)
            is_others = max((alike for _, alike in others), default=0) > longest
            said = others if is_others else said
        if not said:
            return None
        alike, tokens, shares = voted(said)
        kind = kind_of(alike, len(tokens) == 1, is_others)
        opinion = self.said(kind, tokens, shares)
        luck = self._sampler.luck(tokens, n_ahead, ahead)
        return opinion and weighed(opinion, luck)

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Ignore the logits: only picked tokens are part of the text."""

    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        for node in path:
            self._index.append(int(tree.token[node]))

    def catch_up(self, committed: Sequence[int]) -> bool:
        if len(self._index) >= len(committed):
            return False
        self.rest()
        for token in committed[len(self._index) :]:
            self._index.append(token)
        return True

    def next_opinion(self, committed: Sequence[int], root_token: int) -> Opinion | None:
        """Opinion about the token after `committed`, which is read, and `root_token`."""
        self.catch_up(committed)
        return self._answer_after((*self._index.tokens[1 - MAX_MATCH :], root_token), 0)

    def dry_run(self, committed: Sequence[int], n_tokens: int) -> Iterator[tuple[int, Opinion]]:
        """The last `n_tokens` committed tokens that were not read, each with the opinion about it
        as if it were not known, at almost no cost. All committed tokens count as read."""
        self.rest()
        n_read = len(self._index)
        # the draw of the root, which follows the last committed token, is 1 back
        for n_ahead, token in enumerate(committed[n_read:], n_read - len(committed) - 1):
            if -n_ahead <= n_tokens + 1:
                opinion = self._answer_after(self._index.tokens[-MAX_MATCH:], n_ahead)
                if opinion is not None:
                    yield token, opinion
            self._index.append(token)

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
