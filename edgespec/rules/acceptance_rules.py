"""Acceptance rules: which guesses of a verified tree become part of the text.

A rule is a function of one node: the token after it, given the target's logits after each verified
node, the text's seed, and what the draft drew there. A child with that token is then accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgespec.pool import Pool
from edgespec.rules.filters import Logits, Probabilities, Tokens
from edgespec.rules.sampling import Sampler
from edgespec.settings.rule_names import AcceptanceName, Keeps


@dataclass(frozen=True, slots=True)
class Growth:
    """Guesses are drawn from the draft's distribution q, instead of its most probable tokens.

    The number of draws after a node may depend on earlier draws and on q itself, but not on the
    draws after this node: guesses selected by their value would not be distributed by q.
    """

    width: int
    """Most guesses drawn after one node; 1 for a line."""
    with_replacement: bool = True

    def draw(self, tokens: Tokens, q: Probabilities, random: np.random.Generator) -> list[int]:
        """Draw at most `width` of `tokens`, which have the probabilities `q`, in order."""
        if self.with_replacement:
            reached = np.cumsum(q)
            places = random.random(self.width) * reached[-1]
            found = tokens[np.searchsorted(reached, places, side="right")]
        else:  # the order of an exponential race is that of draws without replacement
            found = tokens[np.argsort(random.standard_exponential(len(q)) / q)[: self.width]]
        drawn: list[int] = found.tolist()
        return drawn


def replayed(pool: Pool, node: int, after: Mapping[int, Logits], sampler: Sampler) -> int:
    """Exact replay: the target's own draw. The tree cannot change the text, as the sampler gets the
    same logits, recent tokens and noise as without a draft."""
    return sampler.draw(after[node])


def compared(
    pool: Pool,
    node: int,
    after: Mapping[int, Logits],
    sampler: Sampler,
    is_distinct: bool = False,
    lenience: float = 1.0,
) -> int:
    """Rejection sampling in several steps (SpecInfer: Miao et al., arXiv 2305.09781, algorithm 2).

    The guesses after a node, drawn from the draft's q, are tried one after the other. Each is
    accepted with probability min(1, p / q), where p is the target's distribution after the earlier
    rejections. With one guess it is the rule of Leviathan et al., arXiv 2211.17192; with
    `is_distinct` ones, each of which is removed from the next one's q, Sequoia's (Chen et al.,
    arXiv 2402.12374). With `lenience`, by which q is multiplied (Leviathan et al., appendix A.5,
    lossy), no token has a probability above p / lenience. At temperature 0 nothing is drawn, and
    the target's own token is picked.
    """
    logits, draws = after[node], pool.draws.get(node)
    if draws is None or not draws.guesses:
        return sampler.draw(logits)
    if any(pool.child(node, guess) not in after for guess in draws.guesses):
        return sampler.draw(logits)
    p = dense(*sampler.distribution(logits), len(logits))
    q = lenience * dense(draws.tokens, draws.probabilities, len(logits))
    for guess in draws.guesses:
        if sampler.uniform() * q[guess] < p[guess]:
            return guess
        p = leftover(p, q)
        if is_distinct:  # q of the draw after this guess
            q = leftover(q, np.eye(1, len(q), guess)[0])
    return drawn(p, sampler)


def typical(pool: Pool, node: int, after: Mapping[int, Logits], sampler: Sampler) -> int:
    """Medusa (Cai et al., arXiv 2401.10774, section 3.3.1), lossy: the most probable guess with
    p > min(0.09, 0.3 exp(-H(p))). At temperature 0 this is the target's own token."""
    children = [child for child in pool.children(node) if child in after]
    if not children or sampler.params.temperature == 0:
        return sampler.draw(after[node])
    tokens, p = sampler.distribution(after[node])
    least = min(0.09, 0.3 * math.exp(float((p * np.log(p)).sum())))
    chances, guesses = dense(tokens, p, len(after[node])), pool.token[children]
    best = int(guesses[np.argmax(chances[guesses])])
    return best if chances[best] > least else sampler.draw(after[node])


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One rule by name, and how guesses are made for it."""

    name: AcceptanceName
    pick: Callable[[Pool, int, Mapping[int, Logits], Sampler], int]
    """The token after an accepted node, whose sampler has accepted every token down to it."""
    growth: Growth | None = None
    """Sampling of guesses; None takes the most probable guess of every source."""

    @property
    def keeps(self) -> Keeps:
        """Guarantee of the rule: the target's draws, its distribution, or neither."""
        return self.name.keeps


ACCEPTANCE_RULES: dict[str, AcceptanceRule] = {
    rule.name: rule
    for rule in (
        AcceptanceRule(AcceptanceName.EXACT_REPLAY, replayed),
        AcceptanceRule(AcceptanceName.REJECTION, compared, Growth(1)),
        AcceptanceRule(AcceptanceName.SPECINFER, compared, Growth(8)),
        AcceptanceRule(
            AcceptanceName.SEQUOIA,
            partial(compared, is_distinct=True),
            Growth(8, with_replacement=False),
        ),
        AcceptanceRule(AcceptanceName.LENIENCE, partial(compared, lenience=0.3), Growth(1)),
        AcceptanceRule(AcceptanceName.TYPICAL, typical),
    )
}


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


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token drawn from the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))
