"""The sampler: picks a token from logits, the same for every runtime, with and without a draft.

Owns the random draws and the window of recent tokens. Knows no model and no tree.

Filters run in llama.cpp's order (common/sampling.cpp): logit bias, penalties, top-k, top-p
(Holtzman et al., arXiv 1904.09751), min-p (Nguyen et al., arXiv 2407.01082), temperature.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.ports.text_request import Constraint
from edgespec.settings.config import SamplingParams
from edgespec.values import TokenLogprobs

__all__ = ["Sampler", "SamplingParams", "distribution", "draw", "top_tokens"]

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Probabilities = NDArray[np.float64]


class Sampler:
    """The sampler of one generation.

    `distribution`, `draw` and `uniform` do not change the text; `accept` appends a token.

    Each draw consumes noise for the whole vocabulary, whatever the filters, so that the n-th token
    of a text uses the n-th noise of its seed, however many tokens a round commits.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Iterable[int] = (),
        constraint: Constraint | None = None,
        n_logprobs: int | None = None,
    ) -> None:
        self.params = params
        self._takes_the_best = (
            params.temperature == 0
            and not params.penalises
            and not params.logit_bias
            and constraint is None
        )
        self.latest_logprobs: TokenLogprobs | None = None
        """Log probabilities of the latest accepted token and of `n_logprobs` alternatives; None
        without `n_logprobs`."""
        self._constraint = constraint
        self._n_logprobs = n_logprobs
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        self._coin = np.random.Generator(np.random.PCG64([params.seed, 1]))
        window = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._recent = deque(prompt, maxlen=window)

    def distribution(
        self, logits: Logits, ahead: Sequence[int] = (), temperature: float | None = None
    ) -> tuple[Tokens, Probabilities]:
        """Tokens that may come next, ascending, and their probabilities. `logits` is [n_vocab].

        Penalties also count the tokens `ahead` of the text; a constraint does not see them.
        `temperature` replaces the request's own.
        """
        if self._constraint is not None:
            _best(logits)  # damaged logits are an error, even of forbidden tokens
            # before the filters, which then choose among allowed tokens
            logits = np.where(self._constraint.allowed(), logits, np.float32(-np.inf))
        params, recent = self.params, self._recent
        if temperature is not None:
            params = params.model_copy(update={"temperature": temperature})
        if ahead and params.penalises:
            recent = recent.copy()
            recent.extend(ahead)
        return distribution(logits, params, recent)

    def draw(self, logits: Logits) -> int:
        """A token drawn from `distribution` with the seed's next noise. `logits` is [n_vocab]."""
        if self._takes_the_best:
            best = int(logits.argmax())
            if math.isfinite(logits[best]):
                return best
        tokens, probabilities = self.distribution(logits)
        if self.params.temperature == 0:
            return int(tokens[0])
        return draw(tokens, probabilities, self._random.standard_exponential(len(logits)))

    def uniform(self) -> float:
        """The seed's next uniform draw from [0, 1), independent of the noise of `draw`.

        For acceptance rules that accept guesses at random.
        """
        return float(self._coin.random())

    def forget_constraint(self) -> None:
        """Release the constraint, when the text has ended."""
        self._constraint = None

    def forced(self, most: int) -> list[int]:
        """At most `most` tokens that must come next; none without a constraint."""
        if self._constraint is None or most < 1:
            return []
        return self._constraint.forced(most)

    def accept(self, token: int, logits: Logits) -> None:
        """Append `token`, which was picked from `logits`, to the text."""
        self._recent.append(token)
        if self._constraint is not None:
            self._constraint.take(token)
        if self._n_logprobs is not None:
            self.latest_logprobs = token_logprobs(logits, token, self._n_logprobs)

    def pick(self, logits: Logits) -> int:
        """Draw and accept the next token of the text. `logits` is [n_vocab]."""
        token = self.draw(logits)
        self.accept(token, logits)
        return token


def distribution(
    logits: Logits, params: SamplingParams, recent: Iterable[int] = ()
) -> tuple[Tokens, Probabilities]:
    """Tokens that pass the filters, ascending, and their probabilities after temperature.

    Raises ModelError if no logit is finite, and UsageError if a bias names an unknown token.
    """
    logits = _penalised(_biased(logits, params), params, recent)
    best = _best(logits)
    if params.temperature == 0:
        return np.array([logits.argmax()], np.int64), np.ones(1)

    best_first = top_tokens(logits, params.top_k) if params.top_k else None
    if params.top_p < 1:
        best_first = _nucleus(logits, best_first, params.top_p)
    tokens = np.arange(len(logits)) if best_first is None else np.sort(best_first)
    if params.min_p > 0:
        tokens = tokens[logits[tokens] >= best + math.log(params.min_p)]
    weights = np.exp((logits[tokens].astype(np.float64) - best) / params.temperature)
    tokens, weights = tokens[weights > 0], weights[weights > 0]
    return tokens, weights / weights.sum()


def token_logprobs(logits: Logits, token: int, n_top: int) -> TokenLogprobs:
    """Log probabilities of `token` and of the `n_top` best, by softmax of the target's logits."""
    exact = logits.astype(np.float64)
    best = exact.max()
    log_total = best + math.log(np.exp(exact - best).sum())
    top = top_tokens(logits, n_top) if n_top else ()
    return TokenLogprobs.of(
        float(exact[token] - log_total),
        ((int(other), float(exact[other] - log_total)) for other in top),
    )


def draw(tokens: Tokens, probabilities: Probabilities, noise: NDArray[np.float64]) -> int:
    """Draw one of `tokens` with `noise` [n_vocab], independent Exp(1) times, one per token.

    An exponential race, equivalent to the Gumbel-max trick: argmin noise / p has the distribution
    p. If rounding changes the distribution by a total variation of d, another token wins with a
    probability of at most 2 d (Daliri et al., arXiv 2408.07978). Inverting a cumulative
    distribution would shift every boundary by up to d, which is more than the probability of rare
    tokens.
    """
    with np.errstate(over="ignore"):  # very improbable tokens get infinite times
        return int(tokens[np.argmin(noise[tokens] / probabilities)])


def top_tokens(logits: NDArray[np.floating], k: int) -> Tokens:
    """Ids of the `k` highest logits, best first, lower ids first among equals.

    It avoids sorting the vocabulary: the k-th highest of many block maxima is a lower bound of the
    k-th highest logit, and few more than k logits reach it.
    """
    k = min(k, len(logits))
    width = max(1, len(logits) // (32 * k))
    n_blocks = len(logits) // width
    maxima = logits[: n_blocks * width].reshape(n_blocks, width).max(axis=1)
    bound = np.partition(maxima, n_blocks - k)[n_blocks - k]
    reach = np.flatnonzero(logits >= bound)
    best_first: Tokens = reach[np.argsort(-logits[reach], kind="stable")[:k]]
    return best_first


def _best(logits: Logits) -> float:
    """The highest logit. Raises ModelError if one is not a number, or the highest is not finite."""
    best = float(logits.max())
    if not math.isfinite(best):
        raise ModelError(
            f"the model's best logit is {best}: its weights are damaged, or every token is "
            "forbidden by logit_bias"
        )
    return best


def _biased(logits: Logits, params: SamplingParams) -> Logits:
    if not params.logit_bias:
        return logits
    params.check_vocabulary(len(logits))
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    return logits


def _penalised(logits: Logits, params: SamplingParams, recent: Iterable[int]) -> Logits:
    """Repetition penalty (Keskar et al., arXiv 1909.05858), which also lowers negative logits."""
    if not params.penalises:
        return logits
    tokens, counts = np.unique(np.fromiter(recent, np.int64), return_counts=True)
    logits = logits.copy()
    seen = logits[tokens]
    seen = np.where(seen <= 0, seen * params.repeat_penalty, seen / params.repeat_penalty)
    logits[tokens] = seen - counts * params.frequency_penalty - params.presence_penalty
    return logits


def _nucleus(logits: Logits, best_first: Tokens | None, p: float) -> Tokens:
    """The smallest set of best tokens with total probability `p`, of `best_first` or of all."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    if best_first is not None:
        enough = p * weights[best_first].sum()
    else:
        enough = p * weights.sum()
        k = 256
        best_first = top_tokens(logits, k)
        while weights[best_first].sum() < enough and k < len(logits):
            k *= 8
            best_first = top_tokens(logits, k)
    reached = np.cumsum(weights[best_first])
    return best_first[: int(np.searchsorted(reached, enough)) + 1]
