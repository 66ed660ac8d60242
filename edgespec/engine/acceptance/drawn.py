"""Acceptance rules that keep the target's distribution: guesses are drawn from the draft's own.

p is the target's probability of a guess, q the one that it was drawn by.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from edgespec.engine.acceptance.rule import AcceptanceRule, Growth
from edgespec.engine.sampling import Logits, Probabilities, Sampler, Tokens
from edgespec.settings.config import AcceptanceName, Keeps
from edgespec.tree import ROOT, TokenTree


class DrawnGuesses(AcceptanceRule):
    """Base of rules that compare the target's probability p of a guess with the q it was drawn by.

    At temperature 0 nothing is drawn: the target's own token is picked, whatever was guessed.
    """

    keeps: ClassVar[Keeps] = Keeps.DISTRIBUTION
    growth: ClassVar[Growth | None] = Growth(width=1)

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        draws = tree.draws.get(node)
        if draws is None or not draws.guesses:
            return sampler.draw(after[node])
        if any(tree.child(node, g) not in after for g in draws.guesses):
            return sampler.draw(after[node])
        p = dense(*sampler.distribution(after[node]), len(after[node]))
        q = dense(draws.tokens, draws.probabilities, len(after[node]))
        return self.choose(p, q, draws.guesses, sampler)

    @abstractmethod
    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        """The next token, of the distribution p [n_vocab], where `guesses` were drawn from q."""


class RejectionSampling(DrawnGuesses):
    """Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.

    A guess stands with the chance min(1, p / q); after a rejection the token is drawn from
    norm(max(0, p - q)).
    """

    name: ClassVar[str] = AcceptanceName.REJECTION

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        for guess in guesses:
            if sampler.uniform() * q[guess] < p[guess]:
                return guess
            p = leftover(p, q)
        return drawn(p, sampler)


class MultiStepRejection(RejectionSampling):
    """SpecInfer: Miao et al., arXiv 2305.09781, algorithm 2.

    Rejection sampling on a tree: the guesses after a node are tried one after the other, and p is
    what the rejections before have left of the target's distribution.
    """

    name: ClassVar[str] = AcceptanceName.SPECINFER
    growth: ClassVar[Growth | None] = Growth(width=8)


class WithoutReplacement(DrawnGuesses):
    """Sequoia: Chen et al., arXiv 2402.12374, algorithm 2.

    As SpecInfer's, but no guess is drawn twice after one node: a rejected one is taken out of q,
    which is what the next one was drawn from.
    """

    name: ClassVar[str] = AcceptanceName.SEQUOIA
    growth: ClassVar[Growth | None] = Growth(width=8, with_replacement=False)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        for guess in guesses:
            if sampler.uniform() * q[guess] < p[guess]:
                return guess
            p = leftover(p, q)
            q = without(q, guess)
        return drawn(p, sampler)


def without(q: Probabilities, guess: int) -> Probabilities:
    """The distribution of the next draw after `guess`; all zeros if it was the last one."""
    rest = q.copy()
    rest[guess] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest


class KSequential(DrawnGuesses):
    """SpecTr: Sun et al., arXiv 2310.15141, algorithm 2 (K-SEQ).

    Each of k guesses stands with the chance min(1, p / (rho q)). The smallest rho with
    1 - (1 - beta)^k <= rho beta, where beta = sum(min(q, p / rho)) is the chance of one guess,
    leaves a distribution for the token after k rejections, and accepts within 1 - 1/e of the best
    rule that there can be.
    """

    name: ClassVar[str] = AcceptanceName.SPECTR
    growth: ClassVar[Growth | None] = Growth(width=8)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        k = len(guesses)
        inside = np.flatnonzero(q)
        rho = division(p[inside], q[inside], k)
        for guess in guesses:
            if sampler.uniform() * rho * q[guess] < p[guess]:
                return guess
        accepted = np.minimum(q, p / rho)
        beta = float(accepted.sum())
        if beta == 0:
            return drawn(p, sampler)
        return drawn(np.maximum(p - accepted * chance_of_any(beta, k) / beta, 0.0), sampler)


def chance_of_any(beta: float, k: int) -> float:
    """The chance that one of k guesses stands, if beta is that of each."""
    return float(1 - (1 - beta) ** k)


def division(p: Probabilities, q: Probabilities, k: int) -> float:
    """The smallest rho in [1, k] whose rest is a distribution, from above."""
    low, high = 1.0, float(k)
    while high - low > 1e-9 * high:
        rho = (low + high) / 2
        beta = float(np.minimum(q, p / rho).sum())
        if chance_of_any(beta, k) <= rho * beta:
            high = rho
        else:
            low = rho
    return high


class BlockVerification(DrawnGuesses):
    """Sun et al., arXiv 2403.10444, algorithm 2.

    w, the weight of a line, is min(1, w p / q) of the weight before its last guess: what one guess
    lacks another may make up for. Of all beginnings of the line that a toss accepts, the longest
    stands. It accepts at least as many tokens as rejection sampling does.
    """

    name: ClassVar[str] = AcceptanceName.BLOCK
    looks_ahead: ClassVar[bool] = True

    def picks(
        self, tree: TokenTree, after: Mapping[int, Logits], sampler: Sampler
    ) -> Iterator[int]:
        if sampler.params.temperature == 0:
            yield from super().picks(tree, after, sampler)
            return
        nodes, guesses = _line(tree, after)
        p = [
            dense(*sampler.distribution(after[node], guesses[:depth]), len(after[node]))
            for depth, node in enumerate(nodes)
        ]
        q = [dense(*tree.draws[node][:2], len(p[0])) for node in nodes[:-1]]
        weights, length = [1.0], 0
        for depth, guess in enumerate(guesses):
            weights.append(min(1.0, weights[-1] * p[depth][guess] / q[depth][guess]))
            is_last = depth + 1 == len(guesses)
            chance = weights[-1] if is_last else stands(weights[-1], p[depth + 1], q[depth + 1])
            if sampler.uniform() < chance:
                length = depth + 1
        yield from guesses[:length]
        rest = p[length]
        if length < len(guesses):
            rest = np.maximum(weights[length] * p[length] - q[length], 0.0)
        yield drawn(rest if rest.any() else p[length], sampler)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        raise NotImplementedError("a line is accepted as a whole")


def stands(weight: float, p: Probabilities, q: Probabilities) -> float:
    """The chance that a line of this weight stands if nothing longer does, where p and q are the
    distributions of the next token."""
    rest = float(np.maximum(weight * p - q, 0.0).sum())
    return rest / (rest + 1 - weight) if weight < 1 else 1.0


def _line(tree: TokenTree, after: Mapping[int, Logits]) -> tuple[list[int], list[int]]:
    """The verified nodes from the root down by the guess drawn after each, and these guesses."""
    nodes: list[int] = [ROOT]
    guesses: list[int] = []
    while (draws := tree.draws.get(nodes[-1])) is not None and draws.guesses:
        child = tree.child(nodes[-1], draws.guesses[0])
        if child is None or child not in after:
            break
        nodes.append(child)
        guesses.append(draws.guesses[0])
    return nodes, guesses


def dense(tokens: Tokens, probabilities: Probabilities, n_vocab: int) -> Probabilities:
    """Probabilities of all tokens, [n_vocab]."""
    whole = np.zeros(n_vocab)
    whole[tokens] = probabilities
    return whole


def leftover(p: Probabilities, q: Probabilities) -> Probabilities:
    """The distribution of a token after a guess drawn from q was rejected: norm(max(0, p - q))."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p  # equal ones reject nothing but by rounding


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token of the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))
