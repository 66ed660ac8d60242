"""Acceptance rules: which guesses stand after the target has seen them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from edgespec.config import AcceptanceName
from edgespec.engine.sampling import Logits, Sampler
from edgespec.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a round commits: a path of guesses, and the target's own token after it."""

    path: tuple[int, ...]
    """Verified nodes that stand, the root first, each the parent of the next."""
    next_token: int

    def tokens(self, tree: TokenTree) -> list[int]:
        """What the text gains: the root was committed before."""
        return [*(int(tree.token[node]) for node in self.path[1:]), self.next_token]


class AcceptanceRule(Protocol):
    """Walks a verified tree with the target's logits. To add one, write it and register it."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    """Whether the text is, for every seed, the one that the target writes without a draft. A rule
    that only keeps the distribution of texts is not."""

    def accept(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
        sampler: Sampler,
        eog_tokens: Collection[int],
    ) -> Accepted:
        """What stands. `logits` is float32 [len(nodes), n_vocab]: the target's, after each node.

        The sampler has accepted every token that the text gains, in order, and no other. The walk
        never goes below a token that ends the text.
        """


class ExactReplay:
    """The target's own sampler picks at each node; a guess stands if it is the token picked.

    What the tree holds cannot change the text, only how many tokens a pass yields: the sampler
    meets the same logits, the same recent tokens and the same random draws as without a draft.
    """

    name: ClassVar[str] = AcceptanceName.EXACT_REPLAY
    lossless: ClassVar[bool] = True

    def accept(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
        sampler: Sampler,
        eog_tokens: Collection[int],
    ) -> Accepted:
        after: dict[int, Logits] = dict(zip(nodes, logits, strict=True))
        path = [ROOT]
        while True:
            token = sampler.pick(after[path[-1]])
            guess = tree.child(path[-1], token)
            if token in eog_tokens or guess not in after:
                return Accepted(tuple(path), token)
            path.append(guess)


ACCEPTANCE_RULES: dict[str, Callable[[], AcceptanceRule]] = {ExactReplay.name: ExactReplay}
