"""Acceptance rules that change the text: what the draft prefers gets in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.drawn import DrawnGuesses, dense, drawn, leftover
from edgespec.engine.acceptance.rule import AcceptanceRule
from edgespec.engine.sampling import Logits, Probabilities, Sampler
from edgespec.settings.config import AcceptanceName, Keeps
from edgespec.tree import TokenTree


class Lenience(DrawnGuesses):
    """Leviathan et al., arXiv 2211.17192, appendix A.5.

    q is multiplied by l before it is compared with p: no token comes more often than p / l. At
    temperature 0 a guess stands if its probability is at least l times that of the best token.
    """

    name: ClassVar[str] = AcceptanceName.LENIENCE
    keeps: ClassVar[Keeps] = Keeps.NEITHER
    lenience: ClassVar[float] = 0.3
    """l of the paper."""

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


class TypicalAcceptance(AcceptanceRule):
    """Medusa: Cai et al., arXiv 2401.10774, section 3.3.1.

    A guess stands if p > min(epsilon, delta exp(-H(p))), of several the most probable one. At
    temperature 0 that is the target's own token.
    """

    name: ClassVar[str] = AcceptanceName.TYPICAL
    keeps: ClassVar[Keeps] = Keeps.NEITHER
    epsilon: ClassVar[float] = 0.09
    delta: ClassVar[float] = 0.3

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        children = [child for child in tree.children(node) if child in after]
        if not children or sampler.params.temperature == 0:
            return sampler.draw(after[node])
        tokens, p = sampler.distribution(after[node])
        entropy = -float((p * np.log(p)).sum())
        least = min(self.epsilon, self.delta * math.exp(-entropy))
        chances = dense(tokens, p, len(after[node]))
        guesses = tree.token[children]
        best = int(guesses[np.argmax(chances[guesses])])
        return best if chances[best] > least else sampler.draw(after[node])


class Rollback(AcceptanceRule):
    """Big Little Decoder: Kim et al., arXiv 2302.07863, section 3.4.

    The draft writes the text; a guess is rolled back, and replaced by the target's own token, if
    -log p exceeds a threshold, whatever the temperature. The paper's fallback policy, which says
    when the target is asked, is the stop rule of the same name.
    """

    name: ClassVar[str] = AcceptanceName.BILD
    keeps: ClassVar[Keeps] = Keeps.NEITHER
    threshold: ClassVar[float] = 2.0
    """The authors: 2 to 5 normally works fine."""

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        children = [child for child in tree.children(node) if child in after]
        if not children:
            return sampler.draw(after[node])
        written = max(children, key=lambda child: tree.confidence[child])
        guess = int(tree.token[written])
        tokens, p = sampler.distribution(after[node], temperature=1.0)
        is_probable = np.isin(guess, tokens[p >= math.exp(-self.threshold)])
        return guess if is_probable else sampler.draw(after[node])
