"""Indexes of the recent texts of each client, prompts and answers, in which lookups search.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) keeps earlier answers in suffix trees; here they
are in the index that a text has of itself, and old ones go as a whole. Owns bounded memory; knows
no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.text_index import TextIndex

N_TOKENS = 8192
"""Tokens of each of a client's two indexes: the older one is dropped when the newer one is full."""
N_CLIENTS = 4
"""Clients whose texts are kept, those that asked last."""
MIN_MATCH = 3
"""Fewest matching tokens of an occurrence in another text."""
BYTES = N_CLIENTS * 2 * (TextIndex.n_heads * 4 + N_TOKENS * 8)
"""Memory that all indexes take together, at most."""


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
            if alike >= MIN_MATCH
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
