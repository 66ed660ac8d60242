"""Lets a model reason freely up to the mark that ends it or a number of tokens, and applies a
grammar from there on, if there is one.

Knows tokens and their bytes, but no template and no grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.ports.text_request import Constraint

MAX_BLANKS = 2
"""Most tokens of blanks between the mark and the answer."""


class ReasoningEnd:
    """Tokens that may end reasoning, by their bytes. Reads the vocabulary once, for a grammar."""

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
        self.n_vocab = n_vocab
        self._eog_tokens = eog_tokens

    @cached_property
    def vocabulary(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[tuple[int, bytes]]]:
        """Masks of blanks and of tokens that are free in reasoning, and the tokens that may go on
        behind the mark."""
        blanks, free = np.zeros(self.n_vocab, bool), np.ones(self.n_vocab, bool)
        free[sorted(self._eog_tokens)] = False
        overrunning: list[tuple[int, bytes]] = []
        last = self.mark[-1:]
        for token in range(self.n_vocab):
            shown = self.piece(token)
            blanks[token] = shown.isspace()
            if shown.partition(last)[2].strip():
                overrunning.append((token, shown))
            if self._spans(shown):
                free[token] = False
        return blanks, free, overrunning

    def allowed(self, tail: bytes) -> NDArray[np.bool_]:
        """Mask of the tokens that may follow `tail` in reasoning, bool [n_vocab].

        No token may contain the end of the mark and a part of the answer: the grammar would not see
        it.
        """
        _, free, overrunning = self.vocabulary
        allowed = free.copy()
        if any(tail.endswith(self.mark[:n]) for n in range(1, len(self.mark))):
            allowed[[token for token, shown in overrunning if self._spans(tail + shown)]] = False
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
    """Reasoning of a limited length and what follows it; implements `Constraint`."""

    def __init__(
        self,
        end: ReasoningEnd,
        max_tokens: int,
        grammar: Constraint | None = None,
        begin: str | None = None,
    ) -> None:
        """`max_tokens` of reasoning are free; then it is closed. `grammar` holds behind it; without
        one everything else is free. `begin` is the mark of reasoning that a text may begin with;
        None: it begins inside."""
        self._end = end
        self._n_left = max_tokens
        self._grammar = grammar
        self._begin = None if begin is None else begin.encode()
        self._text = b""
        """The text until it is known whether it is reasoning, then its last bytes."""
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
            later._grammar = None if self._grammar is None else _Ahead(self._grammar)
            for token in ahead:
                if later.forced(1) not in ([], [token]):
                    return np.zeros(self._end.n_vocab, bool)
                later.take(token)
            return later.allowed()
        if self._closes:
            only = np.zeros(self._end.n_vocab, bool)
            only[self._end.closing[self._n_closed]] = True
            return only
        if self._grammar is None:
            return np.ones(self._end.n_vocab, bool)
        if not self._is_answer:
            return self._end.allowed(self._text)
        allowed = self._grammar.allowed()
        return allowed | self._end.vocabulary[0] if self._n_blanks else allowed

    def take(self, token: int) -> None:
        """Advance by the next token of the text. Raises GrammarError."""
        if self._closes:
            self._n_closed += 1
            self._is_answer = self._n_closed == len(self._end.closing)
            self._n_blanks = 0
        elif not self._is_answer:
            self._reason(token)
        elif self._grammar is not None:
            if self._n_blanks and self._end.vocabulary[0][token]:
                self._n_blanks -= 1
            else:
                self._n_blanks = 0
                self._grammar.take(token)

    def forced(self, most: int) -> list[int]:
        """At most `most` tokens that must come next."""
        if self._closes:
            return [*self._end.closing[self._n_closed :][:most]]
        if self._grammar is None or not self._is_answer or self._n_blanks:
            return []
        return self._grammar.forced(most)

    @property
    def _closes(self) -> bool:
        return not self._is_answer and self._begin is None and self._n_left <= 0

    def _reason(self, token: int) -> None:
        text = self._text + self._end.piece(token)
        if self._begin is None:
            self._n_left -= 1
            self._is_answer = self._end.mark in text
            self._text = text[max(0, len(text) - len(self._end.mark) + 1) :]
        elif (shown := text.lstrip()).startswith(self._begin):
            self._text = shown[len(self._begin) :]
            self._begin = None
        else:
            self._is_answer = not self._begin.startswith(shown)
            self._text = text
