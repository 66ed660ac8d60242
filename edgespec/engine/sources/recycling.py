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

from edgespec.engine.sources.source import Opinion, Source
from edgespec.pool import Pool
from edgespec.rules.filters import top_tokens

if TYPE_CHECKING:
    from edgespec.engine.text import Text

PAIR, SINGLE = "after the same two tokens", "after the same token"
KINDS = {PAIR: 0.7, SINGLE: 0.4}
N_SUCCESSORS = 16
"""Number of logits that are kept after a token."""
N_GUESSES = 4
N_KEYS = 8192
"""Most keys of a table, which drops the oldest one: about 2 MB."""
_ALONE = -2 << 32


class RecyclingSource(Source):
    """Guesses from the logits of earlier passes of one client's text in each slot."""

    name = "recycled"
    kinds = KINDS
    temperature = 1.2

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(eog_tokens)
        self._tables: dict[int, tuple[str, dict[int, bytes]]] = {}
        """Tables by slot: the client, and tokens and logits by the keys of the tokens before."""

    def begin(self, text: Text) -> None:
        super().begin(text)
        slot, client = text.slot.number, text.terms.client
        if slot not in self._tables or self._tables[slot][0] != client:
            self._tables[slot] = client, {}

    def answer(self, pool: Pool, node: int, text: Text) -> Opinion | None:
        _, table = self._tables[text.slot.number]
        for kind, key in zip((PAIR, SINGLE), _keys(pool, node, text), strict=True):
            if (found := table.get(key)) is not None:
                tokens, logits = np.frombuffer(found, np.int32).reshape(2, -1)
                depth, ahead = int(pool.depth[node]), self.branch(pool, node, text)
                guesses = text.sampler.foresee(
                    logits.view(np.float32), N_GUESSES, depth, ahead, tokens.astype(np.int64)
                )
                return self.opinion(kind, *guesses)
        return None

    def learn(self, pool: Pool, text: Text, nodes: Sequence[int], logits: np.ndarray) -> None:
        _, table = self._tables[text.slot.number]
        for node, row in zip(nodes, logits, strict=True):
            if not math.isfinite(row.max()):
                continue  # non-finite logits after a rejected guess are no error
            tokens = top_tokens(row, N_SUCCESSORS)
            found = tokens.astype(np.int32).tobytes() + row[tokens].astype(np.float32).tobytes()
            for key in _keys(pool, node, text):
                if len(table) == N_KEYS and key not in table:
                    del table[next(iter(table))]
                table[key] = found


def _keys(pool: Pool, node: int, text: Text) -> tuple[int, int]:
    """Keys of a node's token with the one before it, and of the token alone."""
    parent, committed = int(pool.parent[node]), text.slot.committed
    before = int(pool.token[parent]) if parent >= 0 else committed[-1] if committed else -1
    token = int(pool.token[node])
    return before << 32 | token, _ALONE | token
