"""Guesses of a head, a draft model that reads the target's hidden states (features).

Knows heads through their port, and no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.source import Opinion
from edgespec.pool import Pool
from edgespec.ports import LanguageModel, PassPart

if TYPE_CHECKING:
    from edgespec.engine.text import Text


class HeadSource(ModelSource):
    """Guesses of a head.

    Below guesses it uses features that it predicts itself; accepted tokens are read again with the
    target's.
    """

    def open(self, pool: Pool, text: Text) -> list[int]:
        """The root and the children of evaluated nodes, which have features; none before a text's
        second token."""
        if not self.n_held(text.slot.number):
            return []
        said, root = self.said(text), pool.root[text.slot.number]
        return [
            node
            for node in super().open(pool, text)
            if node == root or int(pool.key[pool.parent[node]]) in said
        ]

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        """Drop all nodes: `path` is read with the target's features."""
        self.rest(text)

    def obstacle(self, text: Text) -> str | None:
        """Missing features, or the reasons of `ModelSource.obstacle`."""
        reason = super().obstacle(text)
        if reason is None and self.model.lacks_features(len(text.slot.committed)):
            return "the target's hidden states of this text are not known"
        return reason

    def rest(self, text: Text) -> None:
        if self.said(text):
            super().rewind(text.slot.number, self.n_held(text.slot.number))

    def rewind(self, slot: int, n_tokens: int) -> None:
        super().rewind(slot, n_tokens)
        if slot < self.n_slots:
            self.model.drop_features(n_tokens)


class BlockSource(HeadSource):
    """Guesses of a block head, which guesses the tokens of several depths in a pass.

    All nodes of a depth have the same guesses; with a chained head, all nodes of a depth and token.
    The score of a path is the product of its confidences, as in DDTree (arXiv 2604.12989). The step
    at the root makes the head's pass; later steps are free until the root changes.
    """

    def __init__(
        self, head: LanguageModel, n_candidates: int, n_vocab: int, eog_tokens: frozenset[int]
    ) -> None:
        super().__init__(head, n_candidates, n_vocab, eog_tokens)
        self.step_depth = head.info.block_guesses
        self._of_place: dict[tuple[int, int], Opinion | None] = {}
        """Guesses by depth and, for chained heads, the token of the node."""

    def open(self, pool: Pool, text: Text) -> list[int]:
        """The root; after its step, all nodes within the block."""
        said, root = self.said(text), pool.root[text.slot.number]
        nodes = pool.alive(text.slot.number).tolist() if self.is_free else [root]
        return [
            node
            for node in nodes
            if pool.depth[node] < self.step_depth
            and int(pool.key[node]) not in said
            and int(pool.token[node]) not in self._eog_tokens
        ]

    def guess(self, pool: Pool, nodes: Sequence[int], texts: Mapping[int, Text]) -> list[int]:
        text = texts[int(pool.text[nodes[0]])]
        said, unseen = self.said(text), {self._place(pool, node): node for node in nodes}
        unseen = {place: node for place, node in unseen.items() if place not in self._of_place}
        if unseen:
            asked = [*unseen.values()]
            [logits] = self.model.evaluate([PassPart(text.slot.number, pool, asked)])
            self._take(pool, asked, logits, text)
        for place, node in unseen.items():
            one = said[int(pool.key[node])]
            self._of_place[place] = one and one._replace(kind=f"{1 + place[0]} ahead")
        for node in nodes:
            said[int(pool.key[node])] = self._of_place[self._place(pool, node)]
        self.is_free = True
        return list(nodes)

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        """Read `path` and drop all guesses, which did not depend on all of it."""
        self.rest(text)
        if len(path) <= self.room(text.slot.number):
            reads = pool.token[list(path)].tolist()
            self.model.evaluate([PassPart(text.slot.number, reads=reads)])

    def read(self, text: Text) -> None:
        """Count the committed tokens as read: their features are in the cache already."""
        slot, committed = text.slot.number, text.slot.committed
        if (n_read := self.n_held(slot)) < len(committed):
            self.rest(text)
            self.model.evaluate([PassPart(slot, reads=committed[n_read:])])

    def rest(self, text: Text) -> None:
        self.said(text).clear()
        self._of_place.clear()
        self.is_free = False

    def rewind(self, slot: int, n_tokens: int) -> None:
        self._of_place.clear()
        self.is_free = False
        super().rewind(slot, n_tokens)

    def _place(self, pool: Pool, node: int) -> tuple[int, int]:
        depth = int(pool.depth[node])
        return depth, int(pool.token[node]) if self.model.info.is_chained and depth else 0
