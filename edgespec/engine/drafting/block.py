"""A head that guesses blocks, as a drafter: one pass gives the guesses of all depths.

Every node of a depth has the same guesses, and a path's score is the product of its guesses'
confidences, as in DDTree (arXiv 2604.12989). It knows heads through the port, and no target.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.head import HeadDrafter
from edgespec.ports.features import GuessesBlocks
from edgespec.tree import ROOT, TokenTree


class BlockDrafter(HeadDrafter):
    """Implements `Drafter` with a head that guesses blocks.

    The step that asks about the root takes the pass; until the root changes, all others are free.
    """

    def __init__(
        self,
        head: GuessesBlocks,
        n_candidates: int,
        temperature: float,
        n_vocab: int,
        eog_tokens: frozenset[int],
    ) -> None:
        super().__init__(head, n_candidates, temperature, n_vocab, eog_tokens)
        self.step_depth = head.block_guesses
        self._by_depth: list[Opinion | None] = []
        """Guesses after nodes of depth 0, 1, ...; empty before the root was asked about."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """The root, and once it was asked about all nodes within the block."""
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
        if not self.is_free:
            self._guess(int(tree.token[ROOT]))
        for node in nodes:
            self._opinions[int(tree.key[node])] = self._by_depth[tree.depth[node]]
        return list(nodes)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Read `path`; its end had no guesses yet that knew all of it."""
        self.rest()
        if self._head.n_committed + len(path) <= self._head.info.n_ctx:
            self._head.prefill(tree.token[list(path)].tolist())

    def rehearse(self, committed: Sequence[int], n_tokens: int) -> list[tuple[Opinion, int]]:
        """Opinions about the tokens of one block; reading costs nothing, so that all are read."""
        n_read = len(committed) - min(n_tokens, 1 + self.step_depth)
        text = committed[n_read:]
        if len(text) < 2 or max(text) >= self._head.info.n_vocab:
            return []
        self.rest()
        self._head.truncate(min(n_read, self._head.n_committed))
        self._head.prefill(committed[self._head.n_committed : n_read])
        self._guess(text[0])
        said = list(zip(self._by_depth, text[1:], strict=False))
        self.rest()
        self._head.prefill(text)
        return [(opinion, token) for opinion, token in said if opinion is not None]

    def rest(self) -> None:
        self._by_depth.clear()
        self._opinions.clear()
        self.is_free = False

    def rewind(self, n_tokens: int) -> None:
        self.rest()
        super().rewind(n_tokens)

    def _guess(self, root_token: int) -> None:
        """Ask the head what follows `root_token` at all depths."""
        line = TokenTree(root_token, self.step_depth)
        for node in range(self.step_depth - 1):
            line.add(node, root_token, 1.0)
        self._take_opinions(line, range(self.step_depth))
        said = [self._opinions.pop(int(key)) for key in line.key[: self.step_depth]]
        self._by_depth = [
            opinion and opinion._replace(kind=f"{1 + depth} ahead")
            for depth, opinion in enumerate(said)
        ]
        self.is_free = True
