"""Guesses from a corpus: what followed the text's last words there, after REST (arXiv 2311.08252).

It keeps the text's end; who searches the corpus, and how, it does not know.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from edgespec.engine.drafting.endings import EndingDrafter, voted
from edgespec.engine.drafting.free import Answer
from edgespec.tree import TokenTree

SHORTEST, LONGEST = 3, 16
"""Words that a place has in common with the text: with fewer a draft model knows better."""


class Searchable(Protocol):
    """The part of an index that the drafter uses."""

    def continuations(self, words: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Tokens that followed places which have words in common with the end of `words`, and how
        many, most first."""


_BY_LENGTH = {SHORTEST: 0.55, 4: 0.6, 6: 0.65, 10: 0.75, LONGEST: 0.8}
"""Prior hit rates by the number of tokens that places have in common, as the embedded target's
sources had them for its texts."""
KINDS = {f"{most}{end}": rate for most, rate in _BY_LENGTH.items() for end in ("", "!")}


class CorpusDrafter(EndingDrafter):
    """Implements `Drafter` with a corpus that was indexed."""

    source = "corpus"
    kinds = KINDS
    n_words = LONGEST

    def __init__(self, index: Searchable, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._index = index
        self._text = array("i")

    @property
    def text(self) -> array[int]:
        return self._text

    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._text.extend(int(tree.token[node]) for node in path)

    def catch_up(self, committed: Sequence[int]) -> None:
        self.rest()
        self._text.extend(committed[len(self._text) :])

    def rewind(self, n_tokens: int) -> None:
        self.rest()
        del self._text[n_tokens:]

    def look_up(self, words: Sequence[int]) -> Answer | None:
        found = [at for at in self._index.continuations(words) if at[1] >= SHORTEST]
        if not found:
            return None
        alike, tokens, shares = voted(found, 1.0, self.n_candidates)
        most = next(most for most in _BY_LENGTH if alike <= most)
        return Answer(f"{most}{'!' if len(tokens) == 1 else ''}", tokens, shares)
