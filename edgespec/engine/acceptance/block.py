"""Block verification: a line of guesses is accepted or rejected as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.drawn import dense, drawn
from edgespec.engine.acceptance.rule import AcceptanceRule, Growth
from edgespec.engine.filters import Logits, Probabilities
from edgespec.engine.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName
from edgespec.tree import ROOT, TokenTree


class BlockVerification(AcceptanceRule):
    """Block verification: Sun et al., arXiv 2403.10444, algorithm 2.

    Each guess updates the weight of a line to w = min(1, w p / q), so a probable guess can
    compensate for an improbable one. Each prefix of the line is accepted or not at random, and the
    longest accepted one is kept. It accepts at least as many tokens as rejection sampling.
    """

    name: ClassVar[str] = AcceptanceName.BLOCK
    growth: ClassVar[Growth | None] = Growth(width=1)
    looks_ahead: ClassVar[bool] = True

    def picks(
        self, tree: TokenTree, after: Mapping[int, Logits], sampler: Sampler
    ) -> Iterator[int]:
        if sampler.params.temperature == 0:
            yield from super().picks(tree, after, sampler)
            return
        nodes, guesses = _line(tree, after)

        def target(depth: int) -> Probabilities:
            """The target's distribution after a node; one is in memory at a time."""
            logits = after[nodes[depth]]
            return dense(*sampler.distribution(logits, guesses[:depth]), len(logits))

        def draft(depth: int) -> Probabilities:
            return dense(*tree.draws[nodes[depth]][:2], len(after[nodes[depth]]))

        weights, length, p = [1.0], 0, target(0)
        for depth, guess in enumerate(guesses):
            weights.append(min(1.0, weights[-1] * p[guess] / draft(depth)[guess]))
            if depth + 1 == len(guesses):
                chance = weights[-1]
            else:
                p = target(depth + 1)
                chance = survival(weights[-1], p, draft(depth + 1))
            if sampler.uniform() < chance:
                length = depth + 1
        p = target(length)  # before the sampler accepts what is yielded
        yield from guesses[:length]
        rest = p
        if length < len(guesses):
            rest = np.maximum(weights[length] * p - draft(length), 0.0)
        yield drawn(rest if rest.any() else p, sampler)

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        """The target's own token: at temperature 0 nothing is drawn."""
        return sampler.draw(after[node])


def survival(weight: float, p: Probabilities, q: Probabilities) -> float:
    """Probability of accepting a line of this weight if no longer one is accepted.

    p and q are the target's and the draft's distributions of the next token.
    """
    rest = float(np.maximum(weight * p - q, 0.0).sum())
    return rest / (rest + 1 - weight) if weight < 1 else 1.0


def _line(tree: TokenTree, after: Mapping[int, Logits]) -> tuple[list[int], list[int]]:
    """The verified nodes along the drawn guesses, from the root, and these guesses."""
    nodes: list[int] = [ROOT]
    guesses: list[int] = []
    while (draws := tree.draws.get(nodes[-1])) is not None and draws.guesses:
        child = tree.child(nodes[-1], draws.guesses[0])
        if child is None or child not in after:
            break
        nodes.append(child)
        guesses.append(draws.guesses[0])
    return nodes, guesses
