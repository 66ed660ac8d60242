"""Guesses drawn from a draft's own distribution, for acceptance rules that compare probabilities.

The acceptance rule says how they are drawn (see `acceptance.rule.Growth`), the pacer where and how
many. Only chances that hold for any draw reach the pacer, so that no guess is kept or dropped
for what it is. It knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgespec.engine.acceptance.rule import Growth
from edgespec.engine.drafting.drafter import Drafter, Guess, Opinion
from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.model import ModelDrafter
from edgespec.engine.pacer import Limits, Pacer
from edgespec.engine.sampling import Logits, SamplingParams, distribution
from edgespec.ports import LanguageModel
from edgespec.tree import Draws, TokenTree

MAX_TOKENS = 64
"""Tokens that can be drawn: q is the draft's distribution over its best ones, which keeps the rows
of q small."""


class DrawingDrafter(ModelDrafter):
    """A draft model that draws its guesses as the target samples: temperature, top-k, top-p, min-p.

    Penalties and biases are the target's alone: whatever q is, the rules make up for it.
    """

    def __init__(
        self,
        model: LanguageModel,
        growth: Growth,
        temperature: float,
        n_vocab: int,
        eog_tokens: frozenset[int],
        max_tokens: int = 0,
    ) -> None:
        super().__init__(model, growth.width, temperature, n_vocab, eog_tokens, max_tokens)
        self._growth = growth
        self._draws: dict[int, Draws] = {}
        """Draws by the key of their node."""
        self._sure: dict[int, float] = {}
        """Probability of the draft's best token, at temperature 1."""
        self.begin_text(SamplingParams())

    def begin_text(self, params: SamplingParams) -> None:
        """The next text is sampled so, and its guesses drawn by its seed."""
        top_k = min(params.top_k or MAX_TOKENS, MAX_TOKENS)
        self._params = SamplingParams(
            temperature=params.temperature, top_k=top_k, top_p=params.top_p, min_p=params.min_p
        )
        self._random = np.random.Generator(np.random.PCG64([params.seed, 2]))

    def draws(self, key: int) -> Draws | None:
        """Draws after the node of that key; None where the model was not asked."""
        return self._draws.get(key)

    def sure(self, key: int) -> float:
        """The probability of the draft's best token after the node of that key."""
        return self._sure.get(key, 0.0)

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0: nothing is drawn."""
        return self._params.temperature == 0

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        super().follow(tree, path, root)
        self._draws = {key: self._draws[key] for key in self._opinions if key in self._draws}
        self._sure = {key: self._sure[key] for key in self._draws}

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self._draws.clear()
        self._sure.clear()

    def _opinion(self, key: int, logits: Logits) -> Opinion:
        opinion = super()._opinion(key, logits)
        if self.is_greedy:
            return opinion
        tokens, q = distribution(logits, self._params)
        guesses = self._growth.draw(tokens, q, self._random)
        self._sure[key] = opinion.probabilities[0]
        self._draws[key] = Draws(tokens, q, tuple(guesses))
        return opinion


class DrawnGrower(TreeGrower):
    """Hangs draws after a node, in order: as many as are worth it, and all of them are verified.

    At temperature 0 the best guesses are as good as draws, and pruned as ever.
    """

    least = 0.3
    """A further draw after a node needs a chance of so many times an equal share of the pass."""

    def __init__(self, drafter: DrawingDrafter) -> None:
        super().__init__([drafter])
        self._drafter = drafter
        self._rates = AcceptedDraws()

    def begin_text(self, params: SamplingParams) -> None:
        super().begin_text(params)
        self._drafter.begin_text(params)

    def begin(self, tree: TokenTree, pacer: Pacer, limits: Limits) -> None:
        """Hang draws after nodes that the draft has read with the text: the root."""
        if self._drafter.is_greedy:
            super().begin(tree, pacer, limits)
            return
        for node in range(len(tree)):
            if node not in tree.draws:
                self._hang_draws(tree, node, pacer, limits)

    def follow(self, tree: TokenTree, path: Sequence[int], root: int, pacer: Pacer) -> TokenTree:
        if self._drafter.is_greedy:
            return super().follow(tree, path, root, pacer)
        for node, picked in pairwise([*path, root]):
            if node in tree.draws:
                sure = self._drafter.sure(int(tree.key[node]))
                self._rates.observe(sure, tree.draws[node].guesses, int(tree.token[picked]))
        self._drafter.follow(tree, path, root)
        return tree.reroot(root)

    def _ask(
        self,
        drafter: Drafter,
        tree: TokenTree,
        open_nodes: Sequence[int],
        pacer: Pacer,
        limits: Limits,
    ) -> bool:
        if self._drafter.is_greedy:
            return super()._ask(drafter, tree, open_nodes, pacer, limits)
        if not open_nodes or len(tree) >= min(limits.max_nodes, tree.capacity - 1):
            return False
        asked = self._drafter.step(tree, pacer.extend(tree, open_nodes, limits))
        for node in asked:
            self._hang_draws(tree, node, pacer, limits)
        return bool(asked)

    def _hang_draws(self, tree: TokenTree, node: int, pacer: Pacer, limits: Limits) -> None:
        key = int(tree.key[node])
        draws = self._drafter.draws(key)
        if draws is None:
            return
        # One place stays free for the target's own token.
        n_nodes = min(limits.max_nodes, tree.capacity - 1) - len(tree)
        n_branches = limits.max_branches - len(tree.leaves()) + 1
        if tree.depth[node] >= limits.max_depth:
            n_nodes = 0
        own = dict(zip(draws.tokens.tolist(), draws.probabilities.tolist(), strict=True))
        chances = self._rates.chances(self._drafter.sure(key), len(draws.guesses))
        # Nothing that was drawn is left out of the pass: a draw is worth its row, or not made.
        cumulative, n_hidden = float(tree.cumulative[node]), limits.n_hidden - len(tree)
        least, dear = self.least / limits.max_nodes, 2 * limits.min_confidence
        guesses = [
            Guess(token, chance, own[token], self._drafter.source)
            for n, (token, chance) in enumerate(zip(draws.guesses, chances, strict=True))
            if n == 0 or cumulative * chance >= (least if n < n_hidden else max(least, dear))
        ]
        kept = len(pacer.children(tree, node, guesses)) if guesses else 0
        guesses = guesses[: max(0, min(kept, n_nodes, n_branches))]
        tree.draws[node] = draws._replace(guesses=tuple(guess.token for guess in guesses))
        for guess in guesses:
            if tree.child(node, guess.token) is None:
                tree.add(node, *guess)
                self.n_guesses += 1


class AcceptedDraws:
    """Hit rates of the n-th draw after a node, by how sure the draft was there.

    Fading counts from a prior. A draw is tried if none before it was accepted.
    """

    fade = 0.99
    sure = (0.5, 0.8, 0.95)
    """Bounds of the classes of nodes, by the probability of the draft's best token."""
    first = (0.45, 0.65, 0.8, 0.93)
    """Prior chance of the first draw in each class."""
    further = 0.2
    """Prior chance of each draw after it."""
    weight = 4.0
    """Tries that the prior counts for."""

    def __init__(self) -> None:
        self._hits: dict[tuple[int, int], float] = {}
        self._tries: dict[tuple[int, int], float] = {}
        """Counts by class and number of the draw."""

    def chances(self, sure: float, n_draws: int) -> list[float]:
        """The chance of each draw to be the one that is accepted, never rising.

        `sure` is the probability of the draft's best token."""
        kind, left, found = self._kind(sure), 1.0, [1.0]
        for n in range(n_draws):
            prior = self.further if n else self.first[kind]
            hits = self._hits.get((kind, n), 0.0) + self.weight * prior
            rate = hits / (self._tries.get((kind, n), 0.0) + self.weight)
            found.append(min(found[-1], left * rate))
            left *= 1 - rate
        return found[1:]

    def observe(self, sure: float, guesses: Sequence[int], token: int) -> None:
        """After a node at which the text went on with `token`."""
        kind = self._kind(sure)
        for n, guess in enumerate(guesses):
            known = (kind, n)
            self._tries[known] = self.fade * self._tries.get(known, 0.0) + 1
            self._hits[known] = self.fade * self._hits.get(known, 0.0) + (guess == token)
            if guess == token:
                return

    def _kind(self, sure: float) -> int:
        return int(np.searchsorted(self.sure, sure))
