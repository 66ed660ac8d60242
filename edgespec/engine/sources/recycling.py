"""Guesses from the target's earlier logits: the tokens that it would draw by them after the same
token.

Token recycling (Luo et al., arXiv 2408.08696): a pass also computes logits after rejected guesses.
Owns tables of bounded size; knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.sources.source import FreeSource, Opinion
from edgespec.pool import Pool
from edgespec.rules.filters import top_tokens

if TYPE_CHECKING:
    from edgespec.engine.text import Text

PAIR, SINGLE = "after the same two tokens", "after the same token"
KINDS = {PAIR: 0.7, SINGLE: 0.4}
N_SUCCESSORS = 16
"""Number of logits that are kept after a token."""
N_GUESSES = 4


class SuccessorTable:
    """The latest successors of each key, for at most `n_rows` keys; drops the oldest key."""

    def __init__(self, n_rows: int = 4096) -> None:
        self._row_of: dict[int, int] = {}
        self._key_of = np.full(n_rows, -1, np.int64)
        self._tokens = np.zeros((n_rows, N_SUCCESSORS), np.int32)
        self._logits = np.zeros((n_rows, N_SUCCESSORS), np.float32)
        self._n_put = 0

    def __len__(self) -> int:
        return len(self._row_of)

    def put(self, key: int, tokens: np.ndarray, logits: np.ndarray) -> None:
        row = self._row_of.get(key)
        if row is None:
            row = self._n_put % len(self._key_of)
            self._n_put += 1
            self._row_of.pop(int(self._key_of[row]), None)
            self._row_of[key] = row
            self._key_of[row] = key
        self._tokens[row, : len(tokens)] = tokens
        self._logits[row] = -np.inf
        self._logits[row, : len(logits)] = logits

    def get(self, key: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Tokens and logits, [n_successors]; None for an unknown key."""
        row = self._row_of.get(key)
        if row is None:
            return None
        is_used = self._logits[row] > -np.inf
        return self._tokens[row, is_used].astype(np.int64), self._logits[row, is_used]


class RecyclingSource(FreeSource):
    """Guesses from the logits of earlier passes of one client's text in each slot."""

    name = "recycled"
    kinds = KINDS
    temperature = 1.2

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._tables: dict[int, tuple[str, SuccessorTable, SuccessorTable]] = {}
        """Tables by slot: the client, and what followed a pair of tokens and a single one."""

    def begin(self, text: Text) -> None:
        super().begin(text)
        slot, client = text.slot.number, text.terms.client
        if slot not in self._tables or self._tables[slot][0] != client:
            self._tables[slot] = client, SuccessorTable(), SuccessorTable()

    def answer(self, pool: Pool, node: int, text: Text) -> Opinion | None:
        _, after_pair, after_token = self._tables[text.slot.number]
        for kind, found in (
            (PAIR, after_pair.get(_pair(pool, node, text))),
            (SINGLE, after_token.get(int(pool.token[node]))),
        ):
            if found is not None:
                tokens, logits = found
                depth, ahead = int(pool.depth[node]), self.branch(pool, node, text)
                guesses = text.foresight.foresee(logits, N_GUESSES, depth, ahead, tokens)
                return self.opinion(kind, *guesses)
        return None

    def learn(self, pool: Pool, text: Text, nodes: Sequence[int], logits: np.ndarray) -> None:
        _, after_pair, after_token = self._tables[text.slot.number]
        for node, row in zip(nodes, logits, strict=True):
            if not math.isfinite(row.max()):
                continue  # non-finite logits after a rejected guess are no error
            tokens = top_tokens(row, N_SUCCESSORS)
            after_pair.put(_pair(pool, node, text), tokens, row[tokens])
            after_token.put(int(pool.token[node]), tokens, row[tokens])

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        self.rest(text)


def _pair(pool: Pool, node: int, text: Text) -> int:
    """The key of a node's token and the one before it."""
    parent, committed = int(pool.parent[node]), text.slot.committed
    before = int(pool.token[parent]) if parent >= 0 else committed[-1] if committed else -1
    return before << 32 | int(pool.token[node])
