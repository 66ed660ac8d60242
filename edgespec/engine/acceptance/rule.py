"""Base classes of acceptance rules, and the drawing of guesses that some of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgespec.engine.filters import Logits, Probabilities, Tokens
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName, Keeps
from edgespec.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Growth:
    """Guesses are drawn from the draft's distribution q, instead of its most probable tokens.

    The number of draws after a node may depend on earlier draws and on q itself, but not on the
    draws after this node: guesses selected by their value would not be distributed by q.
    """

    width: int
    """Most guesses drawn after one node; 1 for a line."""
    with_replacement: bool = True

    def draw(self, tokens: Tokens, q: Probabilities, random: np.random.Generator) -> list[int]:
        """Draw at most `width` of `tokens`, which have the probabilities `q`, in order."""
        if self.with_replacement:
            reached = np.cumsum(q)
            places = random.random(self.width) * reached[-1]
            found = tokens[np.searchsorted(reached, places, side="right")]
        else:  # the order of an exponential race is that of draws without replacement
            found = tokens[np.argsort(random.standard_exponential(len(q)) / q)[: self.width]]
        drawn: list[int] = found.tolist()
        return drawn


class AcceptanceRule(ABC):
    """Picks the tokens of the text from a verified tree. To add one, write a file, register it."""

    name: ClassVar[AcceptanceName | str]
    keeps: ClassVar[Keeps]
    """Guarantee of the rule: the target's draws, its distribution, or neither. A rule of another
    package says it here; of ours it stands beside the name, since help texts tell it, too."""
    growth: ClassVar[Growth | None] = None
    """Sampling of guesses; None takes the most probable guess of every source."""
    looks_ahead: ClassVar[bool] = False
    """True if it evaluates nodes below the current one, where a grammar has no state."""

    def __init_subclass__(cls) -> None:
        if isinstance(name := getattr(cls, "name", None), AcceptanceName):
            cls.keeps = name.keeps

    @property
    def lossless(self) -> bool:
        """True if the text equals the target's without a draft, for every seed."""
        return self.keeps is Keeps.DRAWS

    def picks(
        self, tree: TokenTree, after: Mapping[int, Logits], sampler: Sampler
    ) -> Iterator[int]:
        """Yield the tokens after the root and after each accepted guess.

        `after` has the target's logits [n_vocab] after each verified node. The sampler accepts each
        token before the next one is requested.
        """
        node: int | None = ROOT
        while node is not None and node in after:
            token = self.pick(tree, node, after, sampler)
            yield token
            node = tree.child(node, token)

    @abstractmethod
    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        """The token after `node`; a child with this token is then accepted.

        The sampler has accepted every token down to `node`.
        """


class DrawnGuesses(AcceptanceRule):
    """Base of rules that compare a guess's probabilities p by the target and q by the draft.

    At temperature 0 nothing is drawn: the target's own token is picked.
    """

    growth: ClassVar[Growth | None] = Growth(width=1)

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        draws = tree.draws.get(node)
        if draws is None or not draws.guesses:
            return sampler.draw(after[node])
        if any(tree.child(node, g) not in after for g in draws.guesses):
            return sampler.draw(after[node])
        p = dense(*sampler.distribution(after[node]), len(after[node]))
        q = dense(draws.tokens, draws.probabilities, len(after[node]))
        return self.choose(p, q, draws.guesses, sampler)

    @abstractmethod
    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        """The next token, distributed by p [n_vocab], given `guesses` that were drawn from q."""


def dense(tokens: Tokens, probabilities: Probabilities, n_vocab: int) -> Probabilities:
    """Probabilities of all tokens, [n_vocab]."""
    whole = np.zeros(n_vocab)
    whole[tokens] = probabilities
    return whole


def leftover(p: Probabilities, q: Probabilities) -> Probabilities:
    """The distribution of a token after a guess drawn from q was rejected: norm(max(0, p - q))."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p  # equal distributions reject only by rounding errors


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token drawn from the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))
