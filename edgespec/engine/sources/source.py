"""The interface of sources: whatever guesses tokens after the nodes of the pool.

Knows neither models nor how trees grow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from edgespec.pool import Pool

if TYPE_CHECKING:
    from edgespec.engine.text import Text


class Opinion(NamedTuple):
    """One source's guesses for the token after a node, at least one."""

    source: str
    tokens: Sequence[int]
    """Guesses, best first."""
    probabilities: Sequence[float]
    """The source's own share of each, above 0: softmax of its scores, noise included."""
    chance: float
    """Prior probability that one of them is right."""
    kind: str = "any"
    """Class of opinions with about the same hit rate, which is learnt for each class."""
    temperature: float = 1.0
    """Prior temperature at which the probabilities are calibrated, whatever the text's; learnt."""
    is_exhaustive: bool = False
    """True if the source rated all tokens, so that unnamed ones are improbable."""


class Source:
    """Guesses the tokens after nodes of the trees of all texts.

    It does not change the pool: the engine asks for guesses and adds them. Nodes are remembered by
    `pool.key[node]`. What it holds of a text is a prefix of the text's committed tokens. This base
    class looks an `answer` up for each node, in microseconds; a model takes a step for several.
    """

    name: str
    """Name in the pool, unique among the sources of an engine."""
    is_free = True
    """True if a guess costs almost nothing, so that every node gets one."""
    step_depth = 1
    """Number of consecutive nodes that a step adds."""
    n_slots: int = sys.maxsize
    """Number of slots whose texts it guesses for."""
    kinds: ClassVar[Mapping[str, float]] = {}
    """Prior hit rate of each kind of answer."""
    temperature: float = 2.0
    """Prior temperature at which shares are calibrated."""

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        """No guesses are made after `eog_tokens`."""
        self._eog_tokens = eog_tokens
        self._said: dict[int, dict[int, Opinion | None]] = {}
        """Guesses by slot and key of the node; None for nodes without any."""

    def said(self, text: Text) -> dict[int, Opinion | None]:
        """Guesses after the nodes of a text, by their keys; None without any."""
        return self._said.setdefault(text.slot.number, {})

    def serves(self, text: Text) -> bool:
        """True if it guesses for texts in this slot."""
        return text.slot.number < self.n_slots

    def begin(self, text: Text) -> None:
        """A text begins."""
        self.rest(text)

    def end(self, text: Text, new: Sequence[int]) -> None:
        """A text has ended; `new` are its tokens that no earlier text had computed."""

    def obstacle(self, text: Text) -> str | None:
        """Reason why it cannot guess after the committed tokens and the root; None if it can."""
        return None

    def n_unread(self, text: Text) -> int:
        """Number of committed tokens that reading takes time for."""
        return 0

    def read(self, text: Text) -> None:
        """Read the committed tokens that it has not read."""

    def open(self, pool: Pool, text: Text) -> list[int]:
        """Nodes of a text after which it can guess, ascending."""
        nodes, said = pool.alive(text.slot.number), self.said(text)
        keys, tokens = pool.key[nodes].tolist(), pool.token[nodes].tolist()
        return [
            node
            for node, key, token in zip(nodes.tolist(), keys, tokens, strict=True)
            if key not in said and token not in self._eog_tokens
        ]

    def guess(self, pool: Pool, nodes: Sequence[int], texts: Mapping[int, Text]) -> list[int]:
        """Guess after `nodes` of any `texts`, by slot; returns the nodes that have guesses now."""
        for node in nodes:
            text = texts[int(pool.text[node])]
            self.said(text)[int(pool.key[node])] = self.answer(pool, node, text)
        return list(nodes)

    def answer(self, pool: Pool, node: int, text: Text) -> Opinion | None:
        """Guesses after `node`, as `opinion` makes them."""
        raise NotImplementedError

    def opinion(self, kind: str, tokens: Sequence[int], shares: Sequence[float]) -> Opinion | None:
        """An opinion of one of `kinds`, best token first; None without tokens.

        `shares` are the probabilities of the tokens if one of them is right, above 0.
        """
        if not tokens:
            return None
        return Opinion(self.name, tokens, shares, self.kinds[kind], kind, self.temperature)

    def branch(self, pool: Pool, node: int, text: Text) -> Sequence[int]:
        """Tokens from below the root down to `node`, if the sampler needs them."""
        return pool.branch_tokens(node) if text.sampler.needs_branches else ()

    def learn(self, pool: Pool, text: Text, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Receive the target's `logits` [n_nodes, n_vocab] after each verified node, also after
        rejected guesses."""

    def follow(self, pool: Pool, text: Text, path: Sequence[int], root: int) -> None:
        """Commit `path`, which starts at the old root; `root`, a child of its end, is the new one.

        Drops all nodes that are not below `root`.
        """
        self.rest(text)

    def rest(self, text: Text) -> None:
        """Drop all nodes of a text; its committed tokens may fall behind."""
        self.said(text).clear()

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Drop all nodes of a slot, and all but the first `n_tokens` of its text."""
        self._said.pop(slot, None)

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` soon; callable from any thread."""
