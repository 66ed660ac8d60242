"""Rejection sampling with lenience. Lossy: the text differs from the target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.rule import DrawnGuesses, drawn, leftover
from edgespec.engine.filters import Logits, Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName
from edgespec.tree import TokenTree


class Lenience(DrawnGuesses):
    """Lenience: Leviathan et al., arXiv 2211.17192, appendix A.5.

    q is multiplied by l before it is compared with p, so that no token has a probability above
    p / l. At temperature 0, a guess is accepted if its probability is at least l times that of the
    best token.
    """

    name: ClassVar[str] = AcceptanceName.LENIENCE
    lenience: ClassVar[float] = 0.3
    """The paper's l."""

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        children = [child for child in tree.children(node) if child in after]
        if sampler.params.temperature > 0 or not children:
            return super().pick(tree, node, after, sampler)
        tokens, p = sampler.distribution(after[node], temperature=1.0)
        guess = int(tree.token[children[0]])
        likely = tokens[p >= self.lenience * p.max()]
        return guess if np.isin(guess, likely) else sampler.draw(after[node])

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        guess, lenient = guesses[0], self.lenience * q
        if sampler.uniform() * lenient[guess] < p[guess]:
            return guess
        return drawn(leftover(p, lenient), sampler)
