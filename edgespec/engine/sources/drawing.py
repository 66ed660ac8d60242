"""Guesses drawn from the draft's distribution, for acceptance rules that compare probabilities.

The acceptance rule defines how they are drawn (`Growth`). Knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.source import Opinion
from edgespec.pool import Draws, Pool
from edgespec.ports import LanguageModel
from edgespec.rules.acceptance_rules import Growth
from edgespec.rules.pacer import Guess
from edgespec.rules.sampling import Sampler, SamplingParams, distribution

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
        self.n_slots = 1
        self._growth = growth
        self._draws: dict[int, Draws] = {}
        """Draws by key of the node."""

    def begin(self, text: Text) -> None:
        """Begin a text; guesses are drawn with its seed, independently of the target's draws."""
        super().begin(text)
        params = text.sampler.params
        text.foresight = Sampler(SamplingParams()) if params.temperature > 0 else text.sampler
        top_k = min(params.top_k or MAX_TOKENS, MAX_TOKENS)
        self._params = SamplingParams(
            temperature=params.temperature, top_k=top_k, top_p=params.top_p, min_p=params.min_p
        )
        self._random = np.random.Generator(np.random.PCG64([params.seed, 2]))
        self._draws.clear()

    def drawn(self, pool: Pool, node: int, text: Text) -> list[Guess] | None:
        """The draws after a node in their order, as many as may pay, which depends on no draw's
        value: all of them are verified."""
        key = int(pool.key[node])
        if (draws := self._draws.get(key)) is None or node in pool.draws:
            return None if draws is None else []
        tree, limits = pool.alive(text.slot.number), text.limits
        room = min(limits.max_nodes - len(tree), limits.max_branches - len(pool.leaves(tree)) + 1)
        room *= bool(pool.depth[node] < limits.max_depth)
        opinion, left, confidences = self.said(text)[key], 1.0, list[float]()
        chance = opinion.probabilities[0] if opinion is not None else LATER_DRAW
        for _ in draws.guesses:
            confidences.append(left * chance)
            left, chance = left * (1.0 - chance), LATER_DRAW
        n_paying = sum(pool.cumulative[node] * one >= LEAST_DRAW for one in confidences)
        guesses = draws.guesses[: max(0, min(max(1, n_paying), room))]
        pool.draws[node] = draws._replace(guesses=guesses)
        own = dict(zip(draws.tokens.tolist(), draws.probabilities.tolist(), strict=True))
        first = {token: n for n, token in reversed([*enumerate(guesses)])}
        return [
            Guess(token, confidences[n], own[token], self.name)
            for token, n in sorted(first.items(), key=lambda one: one[1])
            if pool.child(node, token) is None
        ]

    def _opinion(
        self, key: int, logits: np.ndarray, n_ahead: int, ahead: Sequence[int], text: Text
    ) -> Opinion | None:
        opinion = super()._opinion(key, logits, n_ahead, ahead, text)
        if opinion is not None and self._params.temperature > 0:
            tokens, q = distribution(logits, self._params)
            if self._rated is not None:
                tokens = self._rated[tokens]
            guesses = self._growth.draw(tokens, q, self._random)
            self._draws[key] = Draws(tokens, q, tuple(guesses))
        return opinion
