"""Base of drafters without a model: an answer for each node, trusted by the hit rate of its kind.

Subclasses find the answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from edgespec.engine.drafting.drafter import Guess
from edgespec.engine.drafting.hit_rates import HitRates
from edgespec.tree import TokenTree


class Answer(NamedTuple):
    """Candidates for the token after a node, best first."""

    kind: str
    """Answers of one kind are about equally often right."""
    tokens: list[int]
    shares: list[float]
    """Probability of each token if one of them is right; 0 where there are fewer tokens."""


class FreeDrafter(ABC):
    """The part of `Drafter` that is alike where a step costs microseconds."""

    source: str
    is_free = True
    kinds: ClassVar[Mapping[str, float]]
    """Prior hit rate of each kind of answers."""

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        self.belief = HitRates(self.kinds)
        self._eog_tokens = eog_tokens
        self._answers: dict[int, Answer | None] = {}
        """Answers by the key of their node; None where nothing is known."""

    @abstractmethod
    def answer(self, tree: TokenTree, node: int) -> Answer | None:
        """Candidates for the token after `node`."""

    @abstractmethod
    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        """The tokens of `path` are committed."""

    def fresh_belief(self, temperature: float) -> HitRates:
        return HitRates(self.kinds)

    def open_nodes(self, tree: TokenTree) -> list[int]:
        n_nodes = len(tree)
        keys, tokens = tree.key[:n_nodes].tolist(), tree.token[:n_nodes].tolist()
        return [
            node
            for node in range(n_nodes)
            if keys[node] not in self._answers and tokens[node] not in self._eog_tokens
        ]

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        for node in nodes:
            self._answers[int(tree.key[node])] = self.answer(tree, node)
        return list(nodes)

    def guesses(self, key: int) -> Sequence[Guess] | None:
        if key not in self._answers:
            return None
        answer = self._answers[key]
        if answer is None:
            return ()
        rate = self.belief.of(answer.kind)
        return [
            Guess(token, rate * share, share, self.source)
            for token, share in zip(answer.tokens, answer.shares, strict=True)
            if share > 0
        ]

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        for node, picked in pairwise([*path, root]):
            answer = self._answers.get(int(tree.key[node]))
            if answer is not None:
                was_right = int(tree.token[picked]) in answer.tokens
                self.belief = self.belief.observe(answer.kind, was_right)
        self.read(tree, path)
        self.rest()

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        return None

    def rest(self) -> None:
        self._answers.clear()

    def cancel(self) -> None:  # noqa: B027 - there is nothing to end
        """A step takes microseconds."""
