"""Base class of drafters without a model, which look up an answer for each node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.sampling import Sampler, SamplingParams
from edgespec.tree import TokenTree


class Answer(NamedTuple):
    """Candidates for the token after a node, best first."""

    kind: str
    """Class of answers with about the same hit rate."""
    tokens: list[int]
    shares: list[float]
    """Probability of each token if one of them is right, above 0."""
    odds: float = 1.0
    """Factor of the odds that one of them is right, by their noise."""


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
        self._answers: dict[int, Answer | None] = {}
        """Answers by key of the node; None for nodes without one."""

    def begin_text(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @abstractmethod
    def answer(self, tree: TokenTree, node: int) -> Answer | None:
        """Candidates for the token after `node`."""

    @abstractmethod
    def read(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Append the tokens of `path`, which are committed, to the text."""

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

    def opinion(self, key: int) -> Opinion | None:
        return self._opinion(self._answers.get(key))

    def _opinion(self, answer: Answer | None) -> Opinion | None:
        if answer is None or not answer.tokens:
            return None
        chance = self.kinds[answer.kind]
        chance = answer.odds * chance / (1.0 - chance + answer.odds * chance)
        return Opinion(
            self.source, answer.tokens, answer.shares, chance, answer.kind, self.temperature
        )

    def _branch(self, tree: TokenTree, node: int) -> Sequence[int]:
        """Tokens from below the root down to `node`, if the sampler needs them."""
        return tree.branch_tokens(node) if self._sampler.needs_branches else ()

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        self.read(tree, path)
        self.rest()

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        return None

    def rest(self) -> None:
        self._answers.clear()

    def cancel(self) -> None:  # noqa: B027 - there is nothing to end
        """A step takes microseconds."""
