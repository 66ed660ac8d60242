"""Guesses drawn from the draft's distribution, for acceptance rules that compare probabilities.

The acceptance rule defines how they are drawn (`Growth`). Knows no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.sources.model_source import ModelSource
from edgespec.pool import Pool
from edgespec.ports import LanguageModel
from edgespec.rules.acceptance_rules import Draws, Growth
from edgespec.rules.pacer import Guess
from edgespec.rules.sampling import SamplingParams, distribution

if TYPE_CHECKING:
    from edgespec.engine.text import Text

MAX_TOKENS = 64
"""Size of the support of q: the draft's most probable tokens."""
LATER_DRAW, LEAST_DRAW = 0.2, 0.005
"""Chance of a second or later draw after a node, and the least cumulative one of those that are
verified."""


class DrawingSource(ModelSource):
    """A draft model whose guesses are drawn with the request's temperature, top-k, top-p and min-p.

    Penalties and biases are not applied: the acceptance rules are correct for any q. All draws of
    one text are verified, so it serves the first slot only.
    """

    def __init__(
        self,
        model: LanguageModel,
        growth: Growth,
        n_vocab: int,
        eog_tokens: frozenset[int],
        max_tokens: int = 0,
    ) -> None:
        super().__init__(model, growth.width, n_vocab, eog_tokens, max_tokens)
        self.n_slots, self._growth = 1, growth
        self._drawn: dict[int, Draws] = {}
        self.draws: dict[int, Draws] = {}
        """Draws that hang in the tree, by key of the node."""

    def begin(self, text: Text) -> None:
        """Begin a text; guesses are drawn with its seed, independently of the target's draws."""
        super().begin(text)
        params = text.sampler.params
        top_k = min(params.top_k or MAX_TOKENS, MAX_TOKENS)
        self._params = SamplingParams(
            temperature=params.temperature, top_k=top_k, top_p=params.top_p, min_p=params.min_p
        )
        self._random = np.random.Generator(np.random.PCG64([params.seed, 2]))
        self._drawn, self.draws = {}, {}

    def drawn(self, pool: Pool, node: int, text: Text) -> Sequence[Guess] | None:
        """The draws after a node in their order, as many as may pay, which depends on no draw's
        value: all of them are verified. None if nothing is drawn there."""
        key = int(pool.key[node])
        if (draws := self._drawn.get(key)) is None or key in self.draws:
            return None if draws is None else []
        tree, limits = pool.alive(text.slot.number), text.limits
        room = min(limits.max_nodes - len(tree), limits.max_branches - len(pool.leaves(tree)) + 1)
        room *= bool(pool.depth[node] < limits.max_depth)
        left, chance, confidences = 1.0, float(draws.probabilities.max()), list[float]()
        for _ in draws.guesses:
            confidences.append(left * chance)
            left, chance = left * (1.0 - chance), LATER_DRAW
        n_paying = sum(pool.cumulative[node] * one >= LEAST_DRAW for one in confidences)
        guesses = draws.guesses[: max(0, min(max(1, n_paying), room))]
        self.draws[key] = draws._replace(guesses=guesses)
        own = dict(zip(draws.tokens.tolist(), draws.probabilities.tolist(), strict=True))
        first = {token: n for n, token in reversed([*enumerate(guesses)])}
        return [
            Guess(token, confidences[n], own[token], self.name)
            for token, n in sorted(first.items(), key=lambda one: one[1])
        ]

    def _take(
        self,
        pool: Pool,
        nodes: Sequence[int],
        logits: Iterable[np.ndarray],
        text: Text,
    ) -> None:
        rows = [*logits]
        super()._take(pool, nodes, rows, text)
        for node, row in zip(nodes, rows, strict=True):
            key = int(pool.key[node])
            if self._params.temperature > 0 and self.said(text)[key] is not None:
                tokens, q = distribution(row[: self._n_shared], self._params)
                if self._rated is not None:
                    tokens = self._rated[tokens]
                guesses = self._growth.draw(tokens, q, self._random)
                self._drawn[key] = Draws(tokens, q, tuple(guesses))
