"""Exact replay, the default rule: the target's own sampler picks every token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edgespec.engine.acceptance.rule import AcceptanceRule
from edgespec.engine.filters import Logits
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName
from edgespec.tree import TokenTree


class ExactReplay(AcceptanceRule):
    """The target's own sampler picks at each node; a guess is accepted if it is the token picked.

    The tree cannot change the text, only the number of tokens per pass: the sampler gets the same
    logits, recent tokens and random draws as without a draft.
    """

    name: ClassVar[str] = AcceptanceName.EXACT_REPLAY

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        return sampler.draw(after[node])
