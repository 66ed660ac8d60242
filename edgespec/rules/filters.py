"""Arithmetic on logits: biases, penalties and filters, in memory that a plan has a row for.

They run in llama.cpp's order (common/sampling.cpp): logit bias, penalties, top-k, top-p
(Holtzman et al., arXiv 1904.09751), min-p (Nguyen et al., arXiv 2407.01082).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.settings.config import SamplingParams
from edgespec.values import TokenLogprobs

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Probabilities = NDArray[np.float64]

CHUNK = 1 << 14
"""Logits that are turned into weights, or drawn from, at once."""
MIN_GROUPS = 2048
"""Fewest groups of logits whose maxima are computed together: fewer take longer."""


def kept(logits: Logits, params: SamplingParams, best: float) -> Tokens | None:
    """Tokens that pass top-k, top-p and min-p, ascending; None for all. `best` is the highest
    logit."""
    near, bound = None, -math.inf
    if params.min_p > 0:
        bound = best + math.log(params.min_p)
        near = np.flatnonzero(logits >= bound)
        if len(near) == 1:  # the best one passes every filter
            return near
    best_first = top_tokens(logits, params.top_k) if params.top_k else None
    if params.top_p < 1:
        best_first = _nucleus(logits, best_first, params.top_p, best)
    return near if best_first is None else np.sort(best_first[logits[best_first] >= bound])


def token_logprobs(logits: Logits, token: int, n_top: int) -> TokenLogprobs:
    """Log probabilities of `token` and of the `n_top` best, by softmax of the target's logits."""
    best = float(logits.max())
    log_total = best + math.log(total_weight(logits, best))
    top = top_tokens(logits, n_top) if n_top else ()
    return TokenLogprobs.of(
        float(logits[token]) - log_total,
        ((int(other), float(logits[other]) - log_total) for other in top),
    )


def top_tokens(logits: NDArray[np.floating], k: int) -> Tokens:
    """Ids of the `k` highest logits, best first, lower ids first among equals.

    It avoids sorting the vocabulary: the k-th highest of many group maxima is a lower bound of the
    k-th highest logit, and few more than k logits reach it. A group takes every `n_groups`-th
    logit, so that maxima of neighbouring groups are computed together.
    """
    k = min(k, len(logits))
    if k == len(logits):
        return np.argsort(-logits, kind="stable")
    n_each = max(1, len(logits) // max(32 * k, MIN_GROUPS))
    n_groups = len(logits) // n_each
    maxima = logits[: n_groups * n_each].reshape(n_each, n_groups).max(axis=0)
    maxima.partition(n_groups - k)
    bound = maxima[n_groups - k]
    reach = np.flatnonzero(logits >= bound)
    best_first: Tokens = reach[np.argsort(-logits[reach], kind="stable")[:k]]
    return best_first


def best_logit(logits: Logits) -> float:
    """The highest logit. Raises ModelError if one is not a number, or the highest is not finite."""
    best = float(logits.max())
    if not math.isfinite(best):
        raise ModelError(
            f"the model's best logit is {best}: its weights are damaged, or every token is "
            "forbidden by logit_bias"
        )
    return best


def penalises(params: SamplingParams) -> bool:
    """True if tokens that were written become less probable."""
    changes = params.frequency_penalty != 0 or params.presence_penalty != 0
    return params.repeat_last_n != 0 and (changes or params.repeat_penalty != 1)


def adjusted(
    logits: Logits,
    params: SamplingParams,
    recent: Iterable[int],
    tokens: Tokens | None = None,
) -> Logits:
    """Logits of `tokens`, by default of a prefix of the vocabulary, with biases and penalties.

    The repetition penalty (Keskar et al., arXiv 1909.05858) also lowers negative logits.
    """
    if not params.logit_bias and not penalises(params):
        return logits
    logits = logits.copy()
    if params.logit_bias:
        biased = np.array([*params.logit_bias])
        places, found = _places(biased, len(logits), tokens)
        logits[places] += np.array([*params.logit_bias.values()], np.float32)[found]
    if penalises(params):
        seen, counts = np.unique(np.fromiter(recent, np.int64), return_counts=True)
        places, found = _places(seen, len(logits), tokens)
        old = logits[places]
        old = np.where(old <= 0, old * params.repeat_penalty, old / params.repeat_penalty)
        logits[places] = old - counts[found] * params.frequency_penalty - params.presence_penalty
    return logits


def _places(wanted: Tokens, n_logits: int, tokens: Tokens | None) -> tuple[Tokens, Tokens]:
    """Places of `wanted` tokens among `n_logits`, and which of them were found."""
    if tokens is None:
        found = np.flatnonzero(wanted < n_logits)
        return wanted[found], found
    _, places, found = np.intersect1d(tokens, wanted, assume_unique=True, return_indices=True)
    return places, found


def _nucleus(logits: Logits, best_first: Tokens | None, p: float, best: float) -> Tokens:
    """The smallest set of best tokens with total probability `p`, of `best_first` or of all."""
    k, enough = 256, 0.0 if best_first is not None else p * total_weight(logits, best)
    while True:
        some = top_tokens(logits, k) if best_first is None else best_first
        reached = logits[some].astype(np.float64)
        reached -= best
        np.cumsum(np.exp(reached, out=reached), out=reached)
        if best_first is not None or reached[-1] >= enough or k >= len(logits):
            return some[: int(np.searchsorted(reached, enough or p * reached[-1])) + 1]
        k *= 8


def total_weight(logits: Logits, best: float) -> float:
    """Sum of exp(logits - best), with memory for a chunk of the vocabulary."""
    chunks = (logits[begin : begin + CHUNK] for begin in range(0, len(logits), CHUNK))
    return float(sum(np.exp(chunk - np.float32(best)).sum(dtype=np.float64) for chunk in chunks))
