"""Lets a model reason freely up to the mark that ends it, and applies a grammar from there on.

Knows tokens and their bytes, but no template and no grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.ports.text_request import Constraint

MAX_BLANKS = 2
"""Most tokens of blanks between the mark and the answer."""


class ReasoningEnd:
    """Tokens that may end reasoning, by their bytes. Reads the whole vocabulary once."""

    def __init__(
        self,
        mark: str,
        closing: Sequence[int],
        piece: Callable[[int], bytes],
        n_vocab: int,
        eog_tokens: Collection[int],
    ) -> None:
        """`closing` are the tokens of the mark with blanks around it, which close reasoning that
        takes too long; `piece` returns the bytes of a token that are visible."""
        self.mark = mark.encode()
        self.closing = tuple(closing)
        self.piece = piece
        self._free = np.ones(n_vocab, bool)
        self._free[sorted(eog_tokens)] = False
        self.blanks = np.zeros(n_vocab, bool)
        self._overrunning: list[tuple[int, bytes]] = []
        last = self.mark[-1:]
        for token in range(n_vocab):
            shown = piece(token)
            self.blanks[token] = bool(shown) and not shown.strip()
            if shown.partition(last)[2].strip():
                self._overrunning.append((token, shown))
            if self._spans(shown):
                self._free[token] = False

    def allowed(self, tail: bytes) -> NDArray[np.bool_]:
        """Mask of the tokens that may follow `tail` in reasoning, bool [n_vocab].

        No token may contain the end of the mark and a part of the answer: the grammar would not see
        it.
        """
        allowed = self._free.copy()
        if any(tail.endswith(self.mark[:n]) for n in range(1, len(self.mark))):
            allowed[[token for token, shown in self._overrunning if self._spans(tail + shown)]] = (
                False
            )
        return allowed

    def _spans(self, text: bytes) -> bool:
        _before, mark, after = text.partition(self.mark)
        return bool(mark and after.strip())


class _Ahead:
    """A grammar some tokens ahead of its text, which stays where it is."""

    def __init__(self, grammar: Constraint) -> None:
        self._grammar = grammar
        self._ahead: list[int] = []

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        return self._grammar.allowed([*self._ahead, *ahead])

    def take(self, token: int) -> None:
        self._ahead.append(token)

    def forced(self, most: int) -> list[int]:
        return []


class AfterReasoning:
    """A grammar that holds behind reasoning of a limited length; implements `Constraint`."""

    def __init__(self, grammar: Constraint, end: ReasoningEnd, max_tokens: int) -> None:
        """`max_tokens` of reasoning are free; then it is closed."""
        self._grammar = grammar
        self._end = end
        self._n_left = max_tokens
        self._tail = b""
        self._n_closed = 0
        """Number of closing tokens taken."""
        self._n_blanks = MAX_BLANKS
        self._is_answer = False

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Mask of the tokens that may come next, or after the tokens `ahead`, bool [n_vocab].

        Raises GrammarError.
        """
        if ahead:
            later = copy(self)
            later._grammar = _Ahead(self._grammar)
            for token in ahead:
                later.take(token)
            return later.allowed()
        if self._is_answer:
            allowed = self._grammar.allowed()
            return allowed | self._end.blanks if self._n_blanks else allowed
        if self._n_left > 0:
            return self._end.allowed(self._tail)
        only = np.zeros(len(self._end.blanks), bool)
        only[self._end.closing[self._n_closed]] = True
        return only

    def take(self, token: int) -> None:
        """Advance by the next token of the text. Raises GrammarError."""
        if self._is_answer:
            self._answer(token)
        elif self._n_left > 0:
            self._reason(token)
        else:
            self._n_closed += 1
            self._is_answer = self._n_closed == len(self._end.closing)
            self._n_blanks = 0

    def forced(self, most: int) -> list[int]:
        """At most `most` tokens that must come next."""
        if not self._is_answer:
            return [] if self._n_left > 0 else [*self._end.closing[self._n_closed :][:most]]
        return [] if self._n_blanks else self._grammar.forced(most)

    def _reason(self, token: int) -> None:
        self._n_left -= 1
        text = self._tail + self._end.piece(token)
        self._is_answer = self._end.mark in text
        self._tail = text[max(0, len(text) - len(self._end.mark) + 1) :]

    def _answer(self, token: int) -> None:
        if self._n_blanks and self._end.blanks[token]:
            self._n_blanks -= 1
        else:
            self._n_blanks = 0
            self._grammar.take(token)
