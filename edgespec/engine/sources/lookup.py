"""Guesses from the text itself and from recent ones of the same client: the tokens that followed
earlier occurrences of its last tokens.

Like Saxena's prompt lookup and llama.cpp's n-gram modes, but with several continuations, at any
node of a tree. SuffixDecoding (Oliaro et al., arXiv 2411.04975) keeps recent texts in suffix trees;
here every text is in an index of its own, which is kept after its end. Knows no model.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgespec.engine.sources.source import Opinion, Source
from edgespec.pool import Pool

if TYPE_CHECKING:
    from edgespec.engine.text import Text

MIN_MATCH, MIN_RECENT_MATCH, MAX_MATCH = 2, 3, 24
"""Fewest matching tokens of an occurrence, of one in another text, and most that are compared."""
MAX_PLACES = 24
"""Most positions that a search compares."""
N_HEADS = 1 << 15
"""Heads of an index's hash chains."""
N_TOKENS = 8192
"""Tokens of each of a client's two indexes: the older one goes when the newer one has no room."""
N_CLIENTS = 4
"""Clients whose texts are kept, those that asked last."""
N_CANDIDATES = 4
FADING = 0.9
"""Weight of an occurrence relative to the next later one."""
_BY_LENGTH = {2: 0.3, 3: 0.4, 4: 0.5, 6: 0.6, 10: 0.7, MAX_MATCH: 0.8}
"""Prior hit rates by the upper bound of the number of matching tokens."""
KINDS = {
    f"{origin}{most}{end}": rate
    for most, rate in _BY_LENGTH.items()
    for end in ("", "!")
    for origin in ("", "other ")
}
"""Prior hit rates: of other texts' answers, by length, and of those with one continuation ("!")."""
BYTES = N_CLIENTS * 2 * (N_HEADS * 4 + N_TOKENS * 8)
"""Memory that the indexes of recent texts take together, at most."""


@dataclass(slots=True)
class TextIndex:
    """Index of token pairs with about nine bytes per token, as hash chains like those of LZ77.

    A table has the last position of each pair, and each position links to the previous one of the
    same pair. Positions are then compared backwards.
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    before: array[int] = field(default_factory=lambda: array("i"))
    """For each position the previous one with the same hash, or -1."""
    heads: array[int] = field(default_factory=lambda: array("i", [-1]) * N_HEADS)


def extend(index: TextIndex, tokens: Sequence[int]) -> None:
    for token in tokens:
        place, before = len(index.tokens), -1
        index.tokens.append(token)
        if place:
            head = _head(index.tokens[place - 1], token)
            before, index.heads[head] = index.heads[head], place
        index.before.append(before)


def truncate(index: TextIndex, n_tokens: int) -> None:
    for place in range(len(index.tokens) - 1, max(n_tokens, 1) - 1, -1):
        head = _head(index.tokens[place - 1], index.tokens[place])
        index.heads[head] = index.before[place]
    del index.tokens[n_tokens:]
    del index.before[n_tokens:]


def after(index: TextIndex, words: Sequence[int], least: int = MIN_MATCH) -> list[tuple[int, int]]:
    """Tokens that followed earlier occurrences of the last of `words`, the latest first, each with
    the number of matching tokens, at least `least`."""
    if len(words) < MIN_MATCH:
        return []
    tokens, found, place = index.tokens, [], index.heads[_head(words[-2], words[-1])]
    for _ in range(MAX_PLACES):
        if place < 0:
            break
        alike = 0
        for back, word in enumerate(reversed(words)):
            if back > place or tokens[place - back] != word:
                break
            alike += 1
        if alike >= least and place + 1 < len(tokens):
            found.append((tokens[place + 1], alike))
        place = index.before[place]
    return found


def _head(one: int, other: int) -> int:
    return (one * 0x9E3779B1 ^ other * 0x85EBCA6B) >> 7 & (N_HEADS - 1)


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


class LookupSource(Source):
    """Guesses from the text so far, prompt included, and from recent texts of its client."""

    name = "lookup"
    kinds = KINDS

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._own: dict[int, TextIndex] = defaultdict(TextIndex)
        """Index of each slot's text."""
        self._recent: dict[str, list[TextIndex]] = {}
        """Indexes of each client's recent texts, the newest one last."""

    def begin(self, text: Text) -> None:
        super().begin(text)
        client = text.terms.client
        self._recent[client] = self._recent.pop(client, [])
        while len(self._recent) > N_CLIENTS:
            del self._recent[next(iter(self._recent))]

    def end(self, text: Text, new: Sequence[int]) -> None:
        indexes, new = self._recent.get(text.terms.client), new[-N_TOKENS:]
        if indexes is not None:
            if not indexes or len(indexes[-1].tokens) + len(new) > N_TOKENS:
                indexes[:] = [*indexes[-1:], TextIndex()]
            extend(indexes[-1], new)

    def answer(self, pool: Pool, node: int, text: Text) -> Opinion | None:
        own, branch = self._own[text.slot.number], pool.token[pool.path(node)].tolist()
        words = (*own.tokens[-MAX_MATCH:], *branch)[-MAX_MATCH:]
        places = after(own, words)
        longest = max((alike for _, alike in places), default=0)
        recent = self._recent.get(text.terms.client, ()) if longest < MAX_MATCH else ()
        others = [one for each in reversed(recent) for one in after(each, words, MIN_RECENT_MATCH)]
        is_others = max((alike for _, alike in others), default=0) > longest
        places = others if is_others else places
        if not places:
            return None
        alike, tokens, shares = voted(places)
        length = next(most for most in _BY_LENGTH if alike <= most)
        kind = f"{'other ' * is_others}{length}{'!' * (len(tokens) == 1)}"
        return self.opinion(kind, tokens, shares)

    def read(self, text: Text) -> None:
        own, committed = self._own[text.slot.number], text.slot.committed
        if len(own.tokens) < len(committed):
            self.rest(text)
            extend(own, committed[len(own.tokens) :])

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        extend(self._own[text.slot.number], pool.token[list(path)].tolist())
        self.rest(text)

    def rewind(self, slot: int, n_tokens: int) -> None:
        super().rewind(slot, n_tokens)
        truncate(self._own[slot], n_tokens)
