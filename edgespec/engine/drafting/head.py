"""Drafter with a head, a draft model that reads the target's hidden states (features).

Below guesses it uses features that it predicts itself; accepted tokens are read again with the
target's. Knows heads through their port, and no target.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.model import ModelDrafter
from edgespec.ports.features import ReadsFeatures
from edgespec.tree import ROOT, TokenTree


class HeadDrafter(ModelDrafter):
    """Implements `Drafter` with a head."""

    def __init__(
        self,
        head: ReadsFeatures,
        n_candidates: int,
        temperature: float,
        n_vocab: int,
        eog_tokens: frozenset[int],
    ) -> None:
        super().__init__(head, n_candidates, temperature, n_vocab, eog_tokens)
        self._head = head

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """The root and the children of evaluated nodes, which have features; none before a text's
        second token."""
        if not self.window.n_held:
            return []
        return [node for node in super().open_nodes(tree) if self._has_features(tree, node)]

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Read `path` and `root` in one step with the target's features."""
        self.rest()
        n_read = self.window.n_held
        info, n_nodes = self._head.info, len(path) + 1
        # catch_up() reads a longer path as committed tokens
        if n_read and n_nodes <= info.max_nodes and n_read + n_nodes <= info.n_ctx:
            self._read(tree.branch([*path, root]))

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Missing features, or the reasons of `ModelDrafter.obstacle`."""
        reason = super().obstacle(committed, root_token)
        if reason is None and self._head.lacks_features(len(committed)):
            return "the target's hidden states of this text are not known"
        return reason

    def rest(self) -> None:
        if self._opinions:
            super().rewind(self.window.n_held)

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self._head.drop_features(n_tokens)

    def _has_features(self, tree: TokenTree, node: int) -> bool:
        return node == ROOT or int(tree.key[tree.parent[node]]) in self._opinions
