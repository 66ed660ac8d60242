"""The interface of acceptance rules, and the default rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgespec.rules.filters import Logits, Probabilities, Tokens
from edgespec.rules.sampling import Sampler
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


class AcceptanceRule:
    """Picks the tokens of the text from a verified tree: the target's own draw after each node, in
    a rule that does not say otherwise."""

    name: ClassVar[AcceptanceName | str]
    keeps: ClassVar[Keeps]
    """Guarantee of the rule: the target's draws, its distribution, or neither. A rule of another
    package says it here; of ours it stands beside the name, since help texts tell it, too."""
    growth: ClassVar[Growth | None] = None
    """Sampling of guesses; None takes the most probable guess of every source."""

    def __init_subclass__(cls) -> None:
        if isinstance(name := getattr(cls, "name", None), AcceptanceName):
            cls.keeps = name.keeps

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

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        """The token after `node`; a child with this token is then accepted.

        The sampler has accepted every token down to `node`.
        """
        return sampler.draw(after[node])


class ExactReplay(AcceptanceRule):
    """The target's own sampler picks at each node; a guess is accepted if it is the token picked.

    The tree cannot change the text, only the number of tokens per pass: the sampler gets the same
    logits, recent tokens and random draws as without a draft.
    """

    name: ClassVar[str] = AcceptanceName.EXACT_REPLAY
