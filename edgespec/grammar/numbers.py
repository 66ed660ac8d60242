"""Bounds the digits of JSON numbers, which models can write without end.

Knows the bytes of tokens, and nothing of the grammar that allows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

MAX_DIGITS = 16
"""Most digits before the point, after it and in an exponent, as in llama.cpp's grammars."""
_QUOTE, _BACKSLASH = b'"\\'
_DIGITS = frozenset(b"0123456789")


def longest_run(schema: str) -> int:
    """Digits that a number may have under a schema, so that its own constants can be written."""
    return max(MAX_DIGITS, *map(len, re.findall(r"\d+", schema)), 0)


def leading_digits(pieces: Iterable[bytes], n_logits: int) -> NDArray[np.uint8]:
    """Number of digits with which each token begins, [n_logits]."""
    counts = np.zeros(n_logits, np.uint8)
    for token, piece in enumerate(pieces):
        rest = piece.lstrip(b"0123456789")
        counts[token] = min(len(piece) - len(rest), 255)
    return counts


class DigitLimit:
    """Position of a JSON text in its numbers: tokens that make one too long are not allowed where
    it may end."""

    def __init__(self, leading: NDArray[np.uint8], most: int) -> None:
        """`leading` is the result of `leading_digits`, `most` the digits in a row."""
        self._leading = leading
        self._most = most
        self._n_digits = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, piece: bytes) -> None:
        """Advance by the bytes of a token."""
        for byte in piece:
            if self._in_string:
                if byte == _QUOTE and not self._is_escaped:
                    self._in_string = False
                self._is_escaped = byte == _BACKSLASH and not self._is_escaped
            elif byte in _DIGITS:
                self._n_digits += 1
            else:
                self._n_digits = 0
                self._in_string = byte == _QUOTE

    def shortened(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The allowed tokens without those that make a number too long; unless none would be left,
        for the grammar may need more digits."""
        if self._in_string or self._n_digits == 0:
            return allowed
        short = allowed & (self._leading <= max(0, self._most - self._n_digits))
        return short if short.any() else allowed
