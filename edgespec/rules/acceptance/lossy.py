"""Rules that let the draft's probable guesses into the text, so that it differs from the target's.

Their guesses are the best ones of every source. Lenience, which draws its guesses, is in `drawn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edgespec.rules.acceptance.drawn import dense
from edgespec.rules.acceptance.rule import AcceptanceRule
from edgespec.rules.filters import Logits
from edgespec.rules.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName
from edgespec.tree import TokenTree


class TypicalAcceptance(AcceptanceRule):
    """Medusa: Cai et al., arXiv 2401.10774, section 3.3.1.

    The most probable guess with p > min(epsilon, delta exp(-H(p))) is accepted. At temperature 0
    this is the target's own token.
    """

    name: ClassVar[str] = AcceptanceName.TYPICAL
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

    The text consists of the draft's guesses; a guess is replaced by the target's own token if
    -log p exceeds a threshold, at any temperature. The paper's fallback policy, which decides when
    the target verifies, is the stop rule of the same name.
    """

    name: ClassVar[str] = AcceptanceName.BILD
    threshold: ClassVar[float] = 2.0
    """Threshold in nats; the authors recommend 2 to 5."""

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        children = [child for child in tree.children(node) if child in after]
        if not children:
            return sampler.draw(after[node])
        written = max(children, key=lambda child: tree.confidence[child])
        guess = int(tree.token[written])
        tokens, p = sampler.distribution(after[node], temperature=1.0)
        is_probable = guess in tokens[p >= math.exp(-self.threshold)]
        return guess if is_probable else sampler.draw(after[node])
