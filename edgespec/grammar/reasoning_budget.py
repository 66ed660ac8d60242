"""Ends a model's reasoning after a number of tokens, and leaves all other text free.

Knows tokens and their bytes, but no template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ReasoningBudget:
    """A limit of reasoning; implements `Constraint`."""

    def __init__(
        self,
        begin: str | None,
        end: str,
        closing: Sequence[int],
        piece: Callable[[int], bytes],
        n_vocab: int,
        max_tokens: int,
    ) -> None:
        """`begin` is the mark of reasoning that a text may begin with; None: it begins inside.

        After `max_tokens` tokens between the marks come those of `closing`, the mark `end` with
        blanks around it. `piece` returns the bytes of a token that are visible.
        """
        self._begin = None if begin is None else begin.encode()
        self._end = end.encode()
        self._closing = tuple(closing)
        self._piece = piece
        self._all = np.ones(n_vocab, bool)
        self._n_left = max_tokens
        self._text = b""
        """The text until it is known whether it is reasoning, then its last bytes."""
        self._n_closed = 0
        self._is_over = False

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Mask of the tokens that may come next, or after the tokens `ahead`, bool [n_vocab]."""
        if ahead:
            later = copy(self)
            for token in ahead:
                if later.forced(1) not in ([], [token]):
                    return np.zeros_like(self._all)
                later.take(token)
            return later.allowed()
        if not self._closes:
            return self._all.copy()
        only = np.zeros_like(self._all)
        only[self._closing[self._n_closed]] = True
        return only

    def take(self, token: int) -> None:
        """Advance by the next token of the text."""
        if self._is_over:
            return
        if self._closes:
            self._n_closed += 1
            self._is_over = self._n_closed == len(self._closing)
            return
        self._text += self._piece(token)
        if self._begin is None:
            self._n_left -= 1
            self._is_over = self._end in self._text
            self._text = self._text[max(0, len(self._text) - len(self._end) + 1) :]
            return
        text = self._text.lstrip()
        if text.startswith(self._begin):
            self._text = text[len(self._begin) :]
            self._begin = None
        else:
            self._is_over = not self._begin.startswith(text)

    def forced(self, most: int) -> list[int]:
        """At most `most` tokens that must come next."""
        return [*self._closing[self._n_closed :][:most]] if self._closes else []

    @property
    def _closes(self) -> bool:
        return not self._is_over and self._begin is None and self._n_left <= 0
