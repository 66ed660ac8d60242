"""Rules whose guesses are drawn from the draft: rejection sampling in the field's variants, and
block verification, which accepts a line of guesses as a whole.

They compare a guess's probabilities p by the target and q by the draft, so that the text has the
target's distribution, whatever q is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from edgespec.rules.acceptance.rule import AcceptanceRule, Growth
from edgespec.rules.filters import Logits, Probabilities, Tokens
from edgespec.rules.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName
from edgespec.tree import ROOT, TokenTree


class DrawnGuesses(AcceptanceRule, ABC):
    """Base of rules that compare p and q.

    At temperature 0 nothing is drawn: the target's own token is picked.
    """

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
        """The next token, distributed by p [n_vocab], given `guesses` that were drawn from q."""


class MultiStepRejection(DrawnGuesses):
    """SpecInfer: Miao et al., arXiv 2305.09781, algorithm 2.

    The guesses after a node are tried one after the other. Each is accepted with probability
    min(1, p / q), where p is the target's distribution after the earlier rejections.
    """

    name: ClassVar[str] = AcceptanceName.SPECINFER
    growth: ClassVar[Growth | None] = Growth(width=8)

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        for guess in guesses:
            if sampler.uniform() * q[guess] < p[guess]:
                return guess
            p = leftover(p, q)
            q = self.next_draw(q, guess)
        return drawn(p, sampler)

    def next_draw(self, q: Probabilities, guess: int) -> Probabilities:
        """The distribution of the draw after `guess`, which was drawn from q."""
        return q


class RejectionSampling(MultiStepRejection):
    """Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.

    The same with one guess after a node: the rule of the first papers on speculative decoding.
    """

    name: ClassVar[str] = AcceptanceName.REJECTION
    growth: ClassVar[Growth | None] = Growth(width=1)


class WithoutReplacement(MultiStepRejection):
    """Sequoia: Chen et al., arXiv 2402.12374, algorithm 2.

    Guesses after a node are distinct: a rejected one is removed from q, from which the next one was
    drawn.
    """

    name: ClassVar[str] = AcceptanceName.SEQUOIA
    growth: ClassVar[Growth | None] = Growth(width=8, with_replacement=False)

    def next_draw(self, q: Probabilities, guess: int) -> Probabilities:
        return without(q, guess)


class Lenience(RejectionSampling):
    """Lenience: Leviathan et al., arXiv 2211.17192, appendix A.5. Lossy.

    q is multiplied by l before it is compared with p, so that no token has a probability above
    p / l. At temperature 0, a guess is accepted if its probability is at least l times that of the
    best token.
    """

    name: ClassVar[str] = AcceptanceName.LENIENCE
    lenience: ClassVar[float] = 0.3
    """The paper's l."""

    def pick(
        self, tree: TokenTree, node: int, after: Mapping[int, Logits], sampler: Sampler
    ) -> int:
        children = [child for child in tree.children(node) if child in after]
        if sampler.params.temperature > 0 or not children:
            return super().pick(tree, node, after, sampler)
        tokens, p = sampler.distribution(after[node], temperature=1.0)
        guess = int(tree.token[children[0]])
        likely = tokens[p >= self.lenience * p.max()]
        return guess if guess in likely else sampler.draw(after[node])

    def choose(
        self, p: Probabilities, q: Probabilities, guesses: Sequence[int], sampler: Sampler
    ) -> int:
        return super().choose(p, self.lenience * q, guesses, sampler)


class KSequential(DrawnGuesses):
    """SpecTr: Sun et al., arXiv 2310.15141, algorithm 2 (K-SEQ).

    Each of k guesses is accepted with probability min(1, p / (rho q)). rho is the smallest value
    with 1 - (1 - beta)^k <= rho beta, where beta = sum(min(q, p / rho)) is the acceptance
    probability of one guess. The rest is then a distribution for the token after k rejections, and
    the acceptance rate is within a factor of 1 - 1/e of the optimum.
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


class BlockVerification(AcceptanceRule):
    """Block verification: Sun et al., arXiv 2403.10444, algorithm 2.

    Each guess updates the weight of a line to w = min(1, w p / q), so a probable guess can
    compensate for an improbable one. Each prefix of the line is accepted or not at random, and the
    longest accepted one is kept. It accepts at least as many tokens as rejection sampling. At
    temperature 0 nothing is drawn, and the target's own tokens are picked.
    """

    name: ClassVar[str] = AcceptanceName.BLOCK
    growth: ClassVar[Growth | None] = Growth(width=1)

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


def dense(tokens: Tokens, probabilities: Probabilities, n_vocab: int) -> Probabilities:
    """Probabilities of all tokens, [n_vocab]."""
    whole = np.zeros(n_vocab)
    whole[tokens] = probabilities
    return whole


def leftover(p: Probabilities, q: Probabilities) -> Probabilities:
    """The distribution of a token after a guess drawn from q was rejected: norm(max(0, p - q))."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p  # equal distributions reject only by rounding errors


def without(q: Probabilities, guess: int) -> Probabilities:
    """The distribution of the next draw after `guess`; all zeros if there is no other token."""
    rest = q.copy()
    rest[guess] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token drawn from the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))


def chance_of_any(beta: float, k: int) -> float:
    """Probability that one of k guesses is accepted, if each is with probability beta."""
    return float(1 - (1 - beta) ** k)


def division(p: Probabilities, q: Probabilities, k: int) -> float:
    """The smallest rho in [1, k] for which the rest is a distribution, approximated from above."""
    low, high = 1.0, float(k)
    while high - low > 1e-9 * high:
        rho = (low + high) / 2
        beta = float(np.minimum(q, p / rho).sum())
        if chance_of_any(beta, k) <= rho * beta:
            high = rho
        else:
            low = rho
    return high


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
