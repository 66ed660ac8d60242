"""Drafters with a head, a draft model that reads the target's hidden states (features).

Knows heads through their port, and no target.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.ports import LanguageModel, PassPart
from edgespec.tree import ROOT, TokenTree


class HeadDrafter(ModelDrafter):
    """Implements `Drafter` with a head.

    Below guesses it uses features that it predicts itself; accepted tokens are read again with the
    target's.
    """

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """The root and the children of evaluated nodes, which have features; none before a text's
        second token."""
        if not self.n_held:
            return []
        return [node for node in super().open_nodes(tree) if self._has_features(tree, node)]

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Drop all nodes: `path` is read with the target's features."""
        self.rest()

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Missing features, or the reasons of `ModelDrafter.obstacle`."""
        reason = super().obstacle(committed, root_token)
        if reason is None and self.model.lacks_features(len(committed)):
            return "the target's hidden states of this text are not known"
        return reason

    def rest(self) -> None:
        if self._opinions:
            super().rewind(self.n_held)

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self.model.drop_features(n_tokens)

    def _has_features(self, tree: TokenTree, node: int) -> bool:
        return node == ROOT or int(tree.key[tree.parent[node]]) in self._opinions


class BlockDrafter(HeadDrafter):
    """Implements `Drafter` with a block head, which guesses the tokens of several depths in a pass.

    All nodes of a depth have the same guesses; with a chained head, all nodes of a depth and token.
    The score of a path is the product of its confidences, as in DDTree (arXiv 2604.12989). The step
    at the root makes the head's pass; later steps are free until the root changes.
    """

    max_late = 0
    """Reading takes no time: the features of committed tokens are in the cache already."""

    def __init__(
        self,
        head: LanguageModel,
        n_candidates: int,
        n_vocab: int,
        eog_tokens: frozenset[int],
    ) -> None:
        super().__init__(head, n_candidates, n_vocab, eog_tokens)
        self.step_depth = head.info.block_guesses
        self._is_chained = head.info.is_chained
        self._said: dict[tuple[int, int], Opinion | None] = {}
        """Guesses by depth and, for chained heads, the token of the node."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """The root; after its step, all nodes within the block."""
        n_nodes = len(tree) if self.is_free else 1
        keys, tokens = tree.key[:n_nodes].tolist(), tree.token[:n_nodes].tolist()
        return [
            node
            for node in range(n_nodes)
            if tree.depth[node] < self.step_depth
            and keys[node] not in self._opinions
            and tokens[node] not in self._eog_tokens
        ]

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        unseen = {self._place(tree, node): node for node in nodes}
        unseen = {place: node for place, node in unseen.items() if place not in self._said}
        if unseen:
            asked = [*unseen.values()]
            [logits] = self.model.evaluate([PassPart(self._slot, tree, asked)])
            self._take_opinions(tree, asked, logits)
        for place, node in unseen.items():
            said = self._opinions[int(tree.key[node])]
            self._said[place] = said and said._replace(kind=f"{1 + place[0]} ahead")
        for node in nodes:
            self._opinions[int(tree.key[node])] = self._said[self._place(tree, node)]
        self.is_free = True
        return list(nodes)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Read `path` and drop all guesses, which did not depend on all of it."""
        self.rest()
        if len(path) <= self.room:
            self._append(tree.token[list(path)].tolist())

    def rest(self) -> None:
        self._said.clear()
        self._opinions.clear()
        self.is_free = False

    def rewind(self, n_tokens: int) -> None:
        self.rest()
        super().rewind(n_tokens)

    def _place(self, tree: TokenTree, node: int) -> tuple[int, int]:
        depth = int(tree.depth[node])
        return depth, int(tree.token[node]) if self._is_chained and depth else ROOT
