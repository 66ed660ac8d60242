"""Medusa's typical acceptance. Lossy: the text differs from the target's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.rule import AcceptanceRule, dense
from edgespec.engine.filters import Logits
from edgespec.engine.sampling import Sampler
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
