"""Guesses drawn from the draft's distribution, for acceptance rules that compare probabilities.

The acceptance rule defines how they are drawn (`acceptance_rules.Growth`), the pacer where and how
many. The pacer sees acceptance rates by order of drawing instead of token probabilities, so that
selection does not bias the draws. Knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgespec.engine.drafting.drafter import Opinion
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.model_drafter import ModelDrafter
from edgespec.ports import LanguageModel
from edgespec.rules.acceptance_rules import Growth
from edgespec.rules.filters import Logits
from edgespec.rules.pacer import Guess, Pacer
from edgespec.rules.sampling import Sampler, SamplingParams, distribution
from edgespec.rules.tree_limits import Limits
from edgespec.tree import Draws, TokenTree

MAX_TOKENS = 64
"""Size of the support of q: the draft's most probable tokens."""


class DrawingDrafter(ModelDrafter):
    """A draft model whose guesses are drawn with the request's temperature, top-k, top-p and min-p.

    Penalties and biases are not applied: the acceptance rules are correct for any q.
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
        self._growth = growth
        self._draws: dict[int, Draws] = {}
        """Draws by key of the node."""
        self.begin_text(Sampler(SamplingParams()))

    def begin_text(self, sampler: Sampler) -> None:
        """Begin a text; guesses are drawn with its seed, independently of the target's draws."""
        params = sampler.params
        super().begin_text(Sampler(SamplingParams()) if params.temperature > 0 else sampler)
        top_k = min(params.top_k or MAX_TOKENS, MAX_TOKENS)
        self._params = SamplingParams(
            temperature=params.temperature, top_k=top_k, top_p=params.top_p, min_p=params.min_p
        )
        self._random = np.random.Generator(np.random.PCG64([params.seed, 2]))

    def draws(self, key: int) -> Draws | None:
        """Draws after the node with this key; None if the model did not evaluate it."""
        return self._draws.get(key)

    def best_probability(self, key: int) -> float:
        """Probability of the draft's best token at temperature 1 after the node with this key; 0 if
        unknown."""
        opinion = self.opinion(key)
        return opinion.probabilities[0] if opinion is not None else 0.0

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0, where nothing is drawn."""
        return self._params.temperature == 0

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        super().follow(tree, path, root)
        self._draws = {key: self._draws[key] for key in self._opinions if key in self._draws}

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self._draws.clear()

    def _opinion(
        self, key: int, logits: Logits, n_ahead: int, ahead: Sequence[int]
    ) -> Opinion | None:
        opinion = super()._opinion(key, logits, n_ahead, ahead)
        if opinion is None or self.is_greedy:
            return opinion
        tokens, q = distribution(logits, self._params)
        if self._rated is not None:
            tokens = self._rated[tokens]
        guesses = self._growth.draw(tokens, q, self._random)
        self._draws[key] = Draws(tokens, q, tuple(guesses))
        return opinion


class DrawnGrower(TreeGrower):
    """Adds draws to the tree in their order, as many as pay; all of them are verified.

    At temperature 0 it grows the tree like `TreeGrower`.
    """

    min_share = 0.3
    """Least acceptance probability of a second or later draw, relative to 1 / max_nodes."""

    def __init__(self, drafter: DrawingDrafter, pacer: Pacer) -> None:
        super().__init__([drafter], pacer)
        self._drafter = drafter
        self._rates = AcceptedDraws()

    def begin(self, tree: TokenTree, limits: Limits) -> None:
        """Add the draws after nodes that the draft has already evaluated, such as the root."""
        if not self._drafter.is_greedy:
            for node in range(len(tree)):
                if node not in tree.draws:
                    self._hang_draws(tree, node, limits)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> TokenTree:
        if self._drafter.is_greedy:
            return super().follow(tree, path, root)
        for node, picked in pairwise([*path, root]):
            if node in tree.draws:
                sure = self._drafter.best_probability(int(tree.key[node]))
                self._rates.observe(sure, tree.draws[node].guesses, int(tree.token[picked]))
        self._drafter.follow(tree, path, root)
        return tree.reroot(root)

    def _has_room(self, tree: TokenTree, limits: Limits) -> bool:
        if self._drafter.is_greedy:
            return super()._has_room(tree, limits)
        return len(tree) < min(limits.max_nodes, tree.capacity - 1)

    def _hang(self, tree: TokenTree, asked: Sequence[int], limits: Limits) -> None:
        if self._drafter.is_greedy:
            super()._hang(tree, asked, limits)
            return
        for node in asked:
            self._hang_draws(tree, node, limits)

    def _hang_draws(self, tree: TokenTree, node: int, limits: Limits) -> None:
        key = int(tree.key[node])
        draws = self._drafter.draws(key)
        if draws is None:
            return
        # one place is reserved for the target's own token
        n_nodes = min(limits.max_nodes, tree.capacity - 1) - len(tree)
        n_branches = limits.max_branches - len(tree.leaves()) + 1
        if tree.depth[node] >= limits.max_depth:
            n_nodes = 0
        own = dict(zip(draws.tokens.tolist(), draws.probabilities.tolist(), strict=True))
        chances = self._rates.chances(self._drafter.best_probability(key), len(draws.guesses))
        # all draws are verified, so draws that do not pay are dropped here by order, not by token
        cumulative, least = float(tree.cumulative[node]), self.min_share / limits.max_nodes
        guesses = [
            Guess(token, chance, own[token], self._drafter.source)
            for n, (token, chance) in enumerate(zip(draws.guesses, chances, strict=True))
            if n == 0 or cumulative * chance >= least
        ]
        kept = len(self._pacer.children(tree, node, guesses)) if guesses else 0
        guesses = guesses[: max(0, min(kept, n_nodes, n_branches))]
        tree.draws[node] = draws._replace(guesses=tuple(guess.token for guess in guesses))
        for guess in guesses:
            if tree.child(node, guess.token) is None:
                tree.add(node, *guess)
                self.n_guesses += 1


class AcceptedDraws:
    """Hit rates of the n-th draw after a node, by the probability of the draft's best token.

    Fading counts with a prior. The n-th draw counts as a try if no earlier one was accepted.
    """

    fade = 0.99
    bounds = (0.5, 0.8, 0.95)
    """Bounds between the classes of nodes, as probabilities of the draft's best token."""
    first_prior = (0.45, 0.65, 0.8, 0.93)
    """Prior hit rate of the first draw, by class."""
    later_prior = 0.2
    """Prior hit rate of each later draw."""
    prior_weight = 4.0
    """Weight of the prior, in tries."""

    def __init__(self) -> None:
        self._hits: dict[tuple[int, int], float] = {}
        self._tries: dict[tuple[int, int], float] = {}
        """Counts by class and number of the draw."""

    def chances(self, best_probability: float, n_draws: int) -> list[float]:
        """Probability of each draw to be the accepted one, made non-increasing.

        `best_probability` is the probability of the draft's best token.
        """
        kind, left, found = self._kind(best_probability), 1.0, [1.0]
        for n in range(n_draws):
            prior = self.later_prior if n else self.first_prior[kind]
            hits = self._hits.get((kind, n), 0.0) + self.prior_weight * prior
            rate = hits / (self._tries.get((kind, n), 0.0) + self.prior_weight)
            found.append(min(found[-1], left * rate))
            left *= 1 - rate
        return found[1:]

    def observe(self, best_probability: float, guesses: Sequence[int], token: int) -> None:
        """Learn from a node after which `token` was picked."""
        kind = self._kind(best_probability)
        for n, guess in enumerate(guesses):
            known = (kind, n)
            self._tries[known] = self.fade * self._tries.get(known, 0.0) + 1
            self._hits[known] = self.fade * self._hits.get(known, 0.0) + (guess == token)
            if guess == token:
                return

    def _kind(self, best_probability: float) -> int:
        return int(np.searchsorted(self.bounds, best_probability))
