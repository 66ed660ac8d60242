"""BiLD's rollback policy. Lossy: the text is not the target's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.rule import AcceptanceRule
from edgespec.engine.sampling import Logits, Sampler
from edgespec.settings.config import AcceptanceName, Keeps
from edgespec.tree import TokenTree


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
