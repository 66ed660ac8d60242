"""Base class of drafters without a model, which look up an answer for each node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from edgespec.engine.drafting.drafter import Opinion
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.tree import TokenTree


class FreeDrafter(ABC):
    """The common part of drafters whose steps cost microseconds."""

    source: str
    is_free = True
    kinds: ClassVar[Mapping[str, float]]
    """Prior hit rate of each kind of answer."""
    temperature: ClassVar[float] = 2.0
    """Prior temperature at which shares are calibrated."""

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        self._eog_tokens = eog_tokens
        self._sampler = Sampler(SamplingParams())
        self._opinions: dict[int, Opinion | None] = {}
        """Guesses by key of the node; None for nodes without any."""

    def begin_text(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @abstractmethod
    def answer(self, tree: TokenTree, node: int) -> Opinion | None:
        """Guesses after `node`, as `said` makes them."""

    @abstractmethod
    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Append the tokens of `path`, which are committed, to the text."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        n_nodes = len(tree)
        keys, tokens = tree.key[:n_nodes].tolist(), tree.token[:n_nodes].tolist()
        return [
            node
            for node in range(n_nodes)
            if keys[node] not in self._opinions and tokens[node] not in self._eog_tokens
        ]

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        for node in nodes:
            self._opinions[int(tree.key[node])] = self.answer(tree, node)
        return list(nodes)

    def opinion(self, key: int) -> Opinion | None:
        return self._opinions.get(key)

    def said(self, kind: str, tokens: Sequence[int], shares: Sequence[float]) -> Opinion | None:
        """An opinion of one of `kinds`, best token first; None without tokens.

        `shares` are the probabilities of the tokens if one of them is right, above 0.
        """
        if not tokens:
            return None
        return Opinion(self.source, tokens, shares, self.kinds[kind], kind, self.temperature)

    def _branch(self, tree: TokenTree, node: int) -> Sequence[int]:
        """Tokens from below the root down to `node`, if the sampler needs them."""
        return tree.branch_tokens(node) if self._sampler.needs_branches else ()

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        self.read(tree, path)
        self.rest()

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        return None

    def rest(self) -> None:
        self._opinions.clear()

    def cancel(self) -> None:  # noqa: B027 - there is nothing to end
        """A step takes microseconds."""
