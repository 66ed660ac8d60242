"""Protocol of acceptance rules, and the growth that some of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgespec.engine.sampling import Logits, Probabilities, Sampler, Tokens
from edgespec.settings.config import AcceptanceName, Keeps
from edgespec.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Growth:
    """Guesses that are drawn from the draft's own distribution, not its most probable ones.

    How many are drawn after a node, and whether any are, may depend on all that was drawn before
    and on q itself, never on these draws: a guess that is kept because of what it is was not
    drawn from q.
    """

    width: int
    """Most guesses drawn after one node; 1 grows a line."""
    with_replacement: bool = True

    def draw(self, tokens: Tokens, q: Probabilities, random: np.random.Generator) -> list[int]:
        """At most `width` of `tokens`, whose probabilities are `q`, in the order drawn."""
        if self.with_replacement:
            reached = np.cumsum(q)
            places = random.random(self.width) * reached[-1]
            found = tokens[np.searchsorted(reached, places, side="right")]
        else:  # the first ones of an exponential race come in as if drawn one after the other
            found = tokens[np.argsort(random.standard_exponential(len(q)) / q)[: self.width]]
        drawn: list[int] = found.tolist()
        return drawn


class AcceptanceRule(ABC):
    """Picks the tokens of the text from a verified tree. To add one, write a file, register it."""

    name: ClassVar[AcceptanceName | str]
    keeps: ClassVar[Keeps]
    """Part of the target's own text that it keeps."""
    growth: ClassVar[Growth | None] = None
    """Drawing of guesses; None takes the most probable ones of all sources."""
    looks_ahead: ClassVar[bool] = False
    """True if it looks at nodes below before it picks: a grammar has no state there."""

    @property
    def lossless(self) -> bool:
        """True if the text is, for every seed, the one that the target writes without a draft."""
        return self.keeps is Keeps.DRAWS

    def picks(
        self, tree: TokenTree, after: Mapping[int, Logits], sampler: Sampler
    ) -> Iterator[int]:
        """The tokens after the root and after each accepted guess, one at a time.

        `after` holds the target's logits [n_vocab] after each verified node. Between two of them
        the sampler takes the first.
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
        """The token that follows `node`; a guess below the node that carries it is accepted.

        The sampler has taken every token down to `node`.
        """


class DrawnGuesses(AcceptanceRule):
    """Base of rules that compare the target's probability p of a guess with the q it was drawn by.

    At temperature 0 nothing is drawn: the target's own token is picked, whatever was guessed.
    """

    keeps: ClassVar[Keeps] = Keeps.DISTRIBUTION
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
        """The next token, of the distribution p [n_vocab], where `guesses` were drawn from q."""


def dense(tokens: Tokens, probabilities: Probabilities, n_vocab: int) -> Probabilities:
    """Probabilities of all tokens, [n_vocab]."""
    whole = np.zeros(n_vocab)
    whole[tokens] = probabilities
    return whole


def leftover(p: Probabilities, q: Probabilities) -> Probabilities:
    """The distribution of a token after a guess drawn from q was rejected: norm(max(0, p - q))."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p  # equal ones reject nothing but by rounding


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token of the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))
