"""Guesses from the target's earlier logits: the tokens that it would draw by them after the same
token.

Token recycling (Luo et al., arXiv 2408.08696): a pass also computes logits after rejected guesses.
Owns tables of bounded size; knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.free import FreeDrafter
from edgespec.rules.filters import top_tokens
from edgespec.tree import ROOT, TokenTree

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


class RecyclingDrafter(FreeDrafter):
    """Implements `Drafter` with the target's logits of earlier passes."""

    source = "recycled"
    kinds = KINDS
    temperature = 1.2

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._after_pair = SuccessorTable()
        self._after_token = SuccessorTable()
        self._n_read = 0
        self._before_root = -1
        self._client = ""

    def begin_client(self, client: str) -> None:
        if client != self._client:
            self._client = client
            self._after_pair, self._after_token = SuccessorTable(), SuccessorTable()

    def end_text(self, new: Sequence[int]) -> None:
        """Its logits are in the tables already."""

    def answer(self, tree: TokenTree, node: int) -> Opinion | None:
        token = int(tree.token[node])
        for kind, found in (
            (PAIR, self._after_pair.get(self._pair(tree, node))),
            (SINGLE, self._after_token.get(token)),
        ):
            if found is not None:
                tokens, logits = found
                depth, ahead = int(tree.depth[node]), self._branch(tree, node)
                said = self._sampler.foresee(logits, N_GUESSES, depth, ahead, tokens)
                return self.said(kind, *said)
        return None

    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._n_read += len(path)
        self._before_root = int(tree.token[path[-1]])

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        for node, row in zip(nodes, logits, strict=True):
            if not math.isfinite(row.max()):
                continue  # non-finite logits after a rejected guess are no error
            tokens = top_tokens(row, N_SUCCESSORS)
            self._after_pair.put(self._pair(tree, node), tokens, row[tokens])
            self._after_token.put(int(tree.token[node]), tokens, row[tokens])

    def catch_up(self, committed: Sequence[int]) -> bool:
        if self._n_read >= len(committed):
            return False
        self.rest()
        self._n_read, self._before_root = len(committed), int(committed[-1])
        return True

    def rewind(self, n_tokens: int) -> None:
        self.rest()
        if n_tokens < self._n_read:
            self._n_read, self._before_root = n_tokens, -1

    def _pair(self, tree: TokenTree, node: int) -> int:
        """The key of a node's token and the one before it."""
        before = self._before_root if node == ROOT else int(tree.token[tree.parent[node]])
        return before << 32 | int(tree.token[node])
