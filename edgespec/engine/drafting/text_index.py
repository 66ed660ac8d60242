"""Indexes of texts, which find where a text went on after the same tokens.

One is of the text that is written, others are of the recent texts of each client, prompts and
answers: SuffixDecoding (Oliaro et al., arXiv 2411.04975) keeps those in suffix trees; here they are
in the index that a text has of itself, and old ones go as a whole. Owns bounded memory; knows no
drafter.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MIN_MATCH = 2
"""Fewest matching tokens of an occurrence."""
MAX_MATCH = 24
"""Most tokens that are compared."""
N_TOKENS = 8192
"""Tokens of each of a client's two indexes: the older one is dropped when the newer one is full."""
N_CLIENTS = 4
"""Clients whose texts are kept, those that asked last."""
MIN_RECENT_MATCH = 3
"""Fewest matching tokens of an occurrence in another text."""


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


class RecentTexts:
    """The recent texts of one client, at least the last `N_TOKENS` tokens."""

    def __init__(self) -> None:
        self._newer = TextIndex()
        self._older: TextIndex | None = None

    def add(self, tokens: Sequence[int]) -> None:
        """Add a part of a text; parts follow one another like one text."""
        for token in tokens[-N_TOKENS:]:
            if len(self._newer) == N_TOKENS:
                self._newer, self._older = TextIndex(), self._newer
            self._newer.append(token)

    def after(self, words: Sequence[int]) -> list[tuple[int, int]]:
        """Tokens that followed earlier occurrences of the last of `words`, the latest occurrence
        first, each with the number of matching tokens."""
        return [
            (index.tokens[place + 1], alike)
            for index in (self._newer, self._older)
            if index is not None
            for place, alike in index.places(words)
            if alike >= MIN_RECENT_MATCH
        ]


class History:
    """The recent texts of the last `N_CLIENTS` clients, each of which sees its own only."""

    def __init__(self) -> None:
        self._texts: dict[str, RecentTexts] = {}

    def of(self, client: str) -> RecentTexts:
        """The texts of `client`; those of the client that asked longest ago may be dropped."""
        texts = self._texts.pop(client, None) or RecentTexts()
        if len(self._texts) == N_CLIENTS:
            del self._texts[next(iter(self._texts))]
        self._texts[client] = texts
        return texts


BYTES = N_CLIENTS * 2 * (TextIndex.n_heads * 4 + N_TOKENS * 8)
"""Memory that all indexes of recent texts take together, at most."""
