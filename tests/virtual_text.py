"""Texts of known difficulty: the draft knows how often it is right."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

N_VOCAB = 64
PROMPT_TOKENS = 35
FOREIGN = 0.25
"""Share of a prompt's tokens that the target would hardly have written."""
PASSAGE = 16
"""Tokens of a text that are about equally hard to guess."""


@functools.lru_cache(maxsize=1 << 16, typed=True)
def chance(*what: object) -> float:
    """A number from 0 to 1 that depends on `what` alone; target and draft ask for the same ones."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True)
class VirtualText:
    """A text and how well it can be guessed: some passages are easy, others hard."""

    right: float
    """Share of the draft's first guesses that are the target's most probable token."""
    seed: int = 0
    sure: float = 12.0
    """Logit of the target's most probable token above all others; low for a warm text."""
    easy: float = 0.97
    """Share of first guesses that are right in easy passages."""
    hard: float = 0.35
    n_prompt: int = PROMPT_TOKENS
    swapped: bool = False
    """True if the draft ranks the token that it holds for right second."""

    def target(self, context: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(N_VOCAB, np.float32)
        row[self._next(context)] = self.sure
        for n in range(3):
            row[self._other(context, n)] += 0.35 * self.sure
        return row

    def draft(self, context: tuple[int, ...]) -> np.ndarray:
        """Says how sure it is and is right as often, but for a draft that is never right."""
        right = self._right(context)
        u = chance(self.seed, "draft", context[-4:])
        best, second = self._next(context), self._other(context, 0)
        if self.right == 0:
            best, second = self._other(context, 5), self._other(context, 6)
        elif u > right:
            best, second = second, best if chance(u) < 0.6 else self._other(context, 5)
        if self.swapped:
            best, second = second, best
        p = np.full(N_VOCAB, 0.05 * (1 - right) / N_VOCAB + 1e-5)
        p[best] += right
        p[second] += 0.6 * (1 - right)
        return np.log(p).astype(np.float32)

    @functools.cache  # noqa: B019 - a few dozen texts, each asked for on every machine
    def prompt(self, n: int) -> Sequence[int]:
        """Words of somebody who writes much as the target does at temperature 1."""
        tokens = [n % N_VOCAB]
        while len(tokens) < self.n_prompt:
            noise = [chance(self.seed, n, len(tokens), token) for token in range(N_VOCAB)]
            race = -np.log(noise) / np.exp(self.target(tuple(tokens)))
            is_foreign = chance(self.seed, n, len(tokens)) < FOREIGN
            tokens.append(self._other(tuple(tokens), 7) if is_foreign else int(race.argmin()))
        return tuple(tokens)

    def _right(self, context: tuple[int, ...]) -> float:
        """Tokens of even number stand in easy passages, the others in hard ones."""
        if self.right == 0:
            return 0.8
        return self.easy if context[-1] % 2 == 0 else self.hard

    def _next(self, context: tuple[int, ...]) -> int:
        easy_share = (self.right - self.hard) / (self.easy - self.hard) if self.right else 0.5
        leaves = (1 - easy_share if context[-1] % 2 == 0 else easy_share) * 2 / PASSAGE
        changes = chance(self.seed, "changes", context[-4:]) < leaves
        passage = (context[-1] + changes) % 2
        return 2 * int(chance(self.seed, context[-4:]) * (N_VOCAB // 2)) + passage

    def _other(self, context: tuple[int, ...], n: int) -> int:
        token = int(chance(self.seed, n, context[-4:]) * N_VOCAB)
        return token if token != self._next(context) else (token + 1) % N_VOCAB


@dataclass(frozen=True)
class RepeatingText(VirtualText):
    """Prose that no draft guesses, and then a passage of it again and again, with strays."""

    n_prose: int = 20
    """Tokens before the passage comes again."""
    period: int = 16
    again: float = 0.93
    """Share of its tokens that come again."""

    def _next(self, context: tuple[int, ...]) -> int:
        n = len(context)
        repeats = n >= self.n_prompt + self.n_prose and n > self.period
        if repeats and chance(self.seed, "again", n) < self.again:
            return context[-self.period]
        return super()._next(context)


TEXTS = {"good": VirtualText(0.8), "medium": VirtualText(0.5), "useless": VirtualText(0.0)}
