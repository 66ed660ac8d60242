"""Acceptance rules of the field, for comparison with exact replay, which alone keeps a seed's text.

A rule is a function of one node: the token after it, given the target's logits after each verified
node, the text's sampler, and what the draft drew there. A child with that token is then accepted.
`Engine(..., acceptance=ACCEPTANCE_RULES[name])` takes one; sessions always replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.pool import Pool
from edgespec.rules.filters import Logits, Probabilities, Tokens
from edgespec.rules.sampling import Sampler


class Draws(NamedTuple):
    """Guesses that were drawn at random, and the distribution q that they were drawn from."""

    tokens: NDArray[np.int64]
    """Tokens that could be drawn, ascending."""
    probabilities: NDArray[np.float64]
    guesses: tuple[int, ...]
    """In the order drawn; one that was drawn twice is one node."""


class Growth(NamedTuple):
    """Guesses are drawn from the draft's distribution q, instead of its most probable tokens.

    The number of draws after a node may depend on earlier draws and on q itself, but not on the
    draws after this node: guesses selected by their value would not be distributed by q.
    """

    width: int
    """Most guesses drawn after one node; 1 for a line."""
    is_distinct: bool = False

    def draw(self, tokens: Tokens, q: Probabilities, random: np.random.Generator) -> list[int]:
        """Draw at most `width` of `tokens`, which have the probabilities `q`, in order."""
        if not self.is_distinct:
            reached = np.cumsum(q)
            places = random.random(self.width) * reached[-1]
            found = tokens[np.searchsorted(reached, places, side="right")]
        else:  # the order of an exponential race is that of draws without replacement
            found = tokens[np.argsort(random.standard_exponential(len(q)) / q)[: self.width]]
        return [int(token) for token in found]


Rows = Mapping[int, Logits]
Drawn = Mapping[int, Draws]
"""Logits by node, draws by the key of a node."""
Pick = Callable[[Pool, int, Rows, Sampler, Drawn], int]
"""The token after an accepted node, whose sampler has accepted every token down to it."""


class AcceptanceRule(NamedTuple):
    """A rule, and how guesses are made for it: drawn, or the most probable ones of every source."""

    pick: Pick
    growth: Growth | None = None


def replayed(pool: Pool, node: int, after: Rows, sampler: Sampler, draws: Drawn) -> int:
    """Exact replay: the target's own draw. The tree cannot change the text, as the sampler gets the
    same logits, recent tokens and noise as without a draft."""
    return sampler.draw(after[node])


def compared(
    pool: Pool,
    node: int,
    after: Rows,
    sampler: Sampler,
    draws: Drawn,
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
    logits, drawn_here = after[node], draws.get(int(pool.key[node]))
    guesses = drawn_here.guesses if drawn_here else ()
    if drawn_here is None or any(pool.child(node, guess) not in after for guess in guesses):
        return sampler.draw(logits)
    p = dense(*sampler.distribution(logits), len(logits))
    q = lenience * dense(drawn_here.tokens, drawn_here.probabilities, len(logits))
    for guess in guesses:
        if sampler.uniform() * q[guess] < p[guess]:
            return guess
        p = leftover(p, q)
        if is_distinct:  # q of the draw after this guess
            q = leftover(q, np.eye(1, len(q), guess)[0])
    return drawn(p, sampler)


def typical(pool: Pool, node: int, after: Rows, sampler: Sampler, draws: Drawn) -> int:
    """Medusa (Cai et al., arXiv 2401.10774, section 3.3.1), lossy: the most probable guess with
    p > min(0.09, 0.3 exp(-H(p))). At temperature 0 this is the target's own token."""
    children = [child for child in pool.children(node) if child in after]
    if not children or sampler.params.temperature == 0:
        return sampler.draw(after[node])
    tokens, p = sampler.distribution(after[node])
    least = min(0.09, 0.3 * math.exp(float((p * np.log(p)).sum())))
    chances = dense(tokens, p, len(after[node]))
    best = max(pool.token[children].tolist(), key=chances.__getitem__)
    return int(best) if chances[best] > least else sampler.draw(after[node])


EXACT_REPLAY = AcceptanceRule(replayed)
ACCEPTANCE_RULES = {
    "exact-replay": EXACT_REPLAY,
    "rejection": AcceptanceRule(compared, Growth(1)),
    "specinfer": AcceptanceRule(compared, Growth(8)),
    "sequoia": AcceptanceRule(partial(compared, is_distinct=True), Growth(8, is_distinct=True)),
    "lenience": AcceptanceRule(partial(compared, lenience=0.3), Growth(1)),
    "typical": AcceptanceRule(typical),
}
"""Rules by name. Rejection, SpecInfer and Sequoia keep the distribution of texts, lenience and
typical neither."""


def dense(tokens: Tokens, probabilities: Probabilities, n_vocab: int) -> Probabilities:
    """Probabilities of all tokens, [n_vocab]."""
    return np.bincount(tokens, probabilities, n_vocab).astype(np.float64)


def leftover(p: Probabilities, q: Probabilities) -> Probabilities:
    """The distribution of a token after a guess drawn from q was rejected: norm(max(0, p - q))."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p  # equal distributions reject only by rounding errors


def drawn(p: Probabilities, sampler: Sampler) -> int:
    """A token drawn from the distribution p [n_vocab]."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, sampler.uniform() * reached[-1], side="right"))
