"""The sampler: picks a token from logits, the same for every runtime, with and without a draft.

Owns the noise of the draws and the window of recent tokens. Knows no model and no tree; filters are
in `filters`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from edgespec.errors import GrammarError, UsageError
from edgespec.ports.text_request import Constraint
from edgespec.rules.filters import (
    CHUNK,
    Logits,
    Probabilities,
    Tokens,
    adjusted,
    best_logit,
    kept,
    token_logprobs,
    top_tokens,
)
from edgespec.rules.noise import Noise
from edgespec.settings.config import SamplingParams
from edgespec.values import TokenLogprobs

__all__ = ["Sampler", "SamplingParams", "distribution"]

MAX_COMPARED = 8192
"""Largest vocabulary whose tokens are all compared in a draw without filters."""
N_FAVOURITES = 64
"""Number of most probable tokens that are compared first, so that few others can win a draw."""
NEAR = 6.0
"""Temperatures below the best logit down to which tokens are, as a rule, these favourites."""
ROUNDING = 1e-9
"""Relative error that sums of weights certainly do not reach."""


class Sampler:
    """The sampler of one generation.

    `distribution`, `draw`, `foresee` and `uniform` do not change the text; `accept` appends a
    token. The n-th token of a text is drawn with the n-th noise of its seed, however it was made.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Iterable[int] = (),
        constraint: Constraint | None = None,
        n_logprobs: int | None = None,
    ) -> None:
        self.params = params
        self._takes_logits_as_they_are = (
            not params.penalises and not params.logit_bias and constraint is None
        )
        self.latest_logprobs: TokenLogprobs | None = None
        """Log probabilities of the latest accepted token and of `n_logprobs` alternatives; None
        without `n_logprobs`."""
        self.n_accepted = 0
        """Number of tokens of the text, the prompt's not counted."""
        self._constraint = constraint
        self._n_logprobs = n_logprobs
        self._noise = Noise(params.seed)
        window = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._recent = deque(prompt, maxlen=window)

    @cached_property
    def _coin(self) -> np.random.Generator:
        """Coins of acceptance rules; others do without numpy.random, which takes 2 MiB."""
        return np.random.Generator(np.random.PCG64([self.params.seed, 1]))

    def distribution(
        self, logits: Logits, temperature: float | None = None
    ) -> tuple[Tokens, Probabilities]:
        """Tokens that may come next, ascending, and their probabilities, at the request's own
        temperature by default. `logits` is [n_vocab]."""
        params = self.params
        if temperature is not None:
            params = params.model_copy(update={"temperature": temperature})
        best_logit(logits)  # damaged logits are an error, even of forbidden tokens
        return distribution(self._allowed(logits), params, self._recent)

    def draw(self, logits: Logits) -> int:
        """The next token, drawn from `distribution`. `logits` is [n_vocab]."""
        place = int(logits.argmax())
        best = float(logits[place])
        if not math.isfinite(best):
            best_logit(logits)  # raises: damaged logits are an error, even of forbidden tokens
        params, possible = self.params, logits
        if not self._takes_logits_as_they_are:
            params.check_vocabulary(len(logits))
            possible = adjusted(self._allowed(logits), params, self._recent)
            place = int(possible.argmax())
            best = float(possible[place])
            if not math.isfinite(best):
                grammar = "" if self._constraint is None else " that the grammar allows here"
                raise UsageError(f"logit_bias forbids every token{grammar}: leave one out of it")
        if params.temperature == 0:
            return place
        if params.min_p > 0 and (drawn := self._draw_from_few(possible, best)) is not None:
            return drawn
        tokens, scores = self._scores(possible, best, self.n_accepted, 1)
        return int(tokens[scores.argmax()])

    @property
    def needs_branches(self) -> bool:
        """True if what is foreseen depends on the tokens `ahead`, not only on their number."""
        return self.params.penalises or self._constraint is not None

    def foresee(
        self,
        logits: Logits,
        k: int,
        n_ahead: int = 0,
        ahead: Sequence[int] = (),
        tokens: Tokens | None = None,
    ) -> tuple[list[int], list[float]]:
        """At most `k` candidates for the draw that is `n_ahead` tokens away, by a guess of the
        target's `logits` there.

        Tokens come best first, by the highest `logit + temperature * noise`, with their shares:
        softmax of these scores over all tokens that were compared.

        Biases, penalties, constraint, filters, temperature and noise are those of that draw, after
        the tokens `ahead`; draws before the text's first have no noise. `logits` are those of
        `tokens`, [len(tokens)], or of a prefix of the vocabulary. Raises ModelError if the highest
        is not finite.
        """
        best_logit(logits)
        if n_ahead >= 0:
            logits = self._foreseeably_allowed(logits, ahead, tokens)
        logits = adjusted(logits, self.params, self._with(ahead), tokens)
        best = float(logits.max())
        if not math.isfinite(best):
            return [], []
        position = self.n_accepted + n_ahead
        if self.params.temperature == 0 or position < 0:
            places = top_tokens(logits, k)
            weights = np.exp(logits - best)
            shares = weights[places] / weights.sum()
        else:
            places, scores = self._scores(logits, best, position, k, tokens)
            weights = np.exp(scores - scores.max())
            order = np.lexsort((places, -scores))[:k]
            places, shares = places[order], weights[order] / weights.sum()
        possible = np.isfinite(logits[places])
        shares = np.maximum(shares[possible], np.finfo(np.float32).tiny)
        found = places[possible] if tokens is None else tokens[places[possible]]
        return found.tolist(), shares.tolist()

    def luck(self, tokens: Sequence[int], n_ahead: int, ahead: Sequence[int] = ()) -> list[float]:
        """Log odds that noise adds to `tokens` in the draw that is `n_ahead` tokens away, for
        guesses without logits; -inf for those that a constraint forbids there.

        With an exponential time e, a token of probability 1/2 is drawn with probability exp(-e):
        its log odds are -log(expm1(e)), times the temperature.
        """
        these, position = np.array(tokens, np.int64), self.n_accepted + n_ahead
        temperature, favours = self.params.temperature, [0.0] * len(these)
        if temperature > 0 and position >= 0:
            times = (math.exp(-noise) for noise in self._noise.gumbel(position, these).tolist())
            favours = [-temperature * math.log(math.expm1(time)) for time in times]
        if self._constraint is not None and n_ahead >= 0:
            none = np.zeros(len(these), np.float32)
            allowed = self._foreseeably_allowed(none, ahead, these).tolist()
            favours = [one + bias for one, bias in zip(favours, allowed, strict=True)]
        return favours

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
        self.n_accepted += 1
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

    def _allowed(
        self, logits: Logits, ahead: Sequence[int] = (), tokens: Tokens | None = None
    ) -> Logits:
        """`logits` without the tokens that the constraint forbids after `ahead`, so that filters
        choose among the rest."""
        if self._constraint is None:
            return logits
        allowed = self._constraint.allowed(ahead)
        allowed = allowed[: len(logits)] if tokens is None else allowed[tokens]
        return np.where(allowed, logits, np.float32(-np.inf))

    def _foreseeably_allowed(
        self, logits: Logits, ahead: Sequence[int], tokens: Tokens | None
    ) -> Logits:
        """Result of `_allowed`; nothing is allowed where the constraint fails: the draw raises."""
        try:
            return self._allowed(logits, ahead, tokens)
        except GrammarError:
            return np.full_like(logits, -np.inf)

    def _with(self, ahead: Sequence[int]) -> Iterable[int]:
        """The window of recent tokens after `ahead`."""
        if not ahead or not self.params.penalises:
            return self._recent
        recent = self._recent.copy()
        recent.extend(ahead)
        return recent

    def _draw_from_few(self, logits: Logits, best: float) -> int | None:
        """The token that `_scores` would rank first, found among the few that pass min-p alone;
        None unless it certainly passes the other filters, too. Calls less of numpy, whose code the
        weights of a pass displace from the caches."""
        params = self.params
        near = (logits >= best + math.log(params.min_p)).nonzero()[0]
        if len(near) == 1:
            return int(near[0])
        if len(near) > min(params.top_k or N_FAVOURITES, N_FAVOURITES):
            return None
        found = logits[near]
        noise = self._noise.gumbel(self.n_accepted, near)
        winner = int((found + params.temperature * noise).argmax())
        values = found.tolist()
        value = values[winner]
        # top-k keeps all of them; top-p keeps a token if those before it have less than its share
        weight = weight_before = 0.0
        for place, each in enumerate(values):
            its_weight = math.exp(each - best)
            weight += its_weight
            if each > value or (each == value and place < winner):
                weight_before += its_weight
        is_kept = weight_before <= params.top_p * weight * (1 - ROUNDING)
        return int(near[winner]) if is_kept else None

    def _scores(
        self, logits: Logits, best: float, position: int, k: int, tokens: Tokens | None = None
    ) -> tuple[Tokens, Probabilities]:
        """Places in `logits` that pass the filters and their `logit + temperature * noise`, the `k`
        highest among them. `best` is the highest logit. `tokens` are those of the places, by
        default the places themselves."""
        places, temperature = kept(logits, self.params, best), self.params.temperature
        if places is None and len(logits) <= MAX_COMPARED:
            places = np.arange(len(logits))
        if places is not None:
            return self._best_scores(logits, position, k, places, tokens)
        least = best - NEAR * temperature
        places = (logits >= least).nonzero()[0]
        if not k <= len(places) <= N_FAVOURITES:
            places = top_tokens(logits, max(k, N_FAVOURITES))
            least = float(logits[places[-1]])
            places = np.sort(places[np.isfinite(logits[places])])
        scores = logits[places] + self._scaled_noise(position, places, tokens)
        if not math.isfinite(least):  # no others are possible
            return places, scores
        bound = float(scores.max() if k == 1 else np.partition(scores, -k)[-k])
        level = (bound - least) / temperature
        others = _without(self._noise.above(level, position, len(logits), tokens), places)
        reached = logits[others] + self._scaled_noise(position, others, tokens)
        return np.concatenate((places, others)), np.concatenate((scores, reached))

    def _best_scores(
        self, logits: Logits, position: int, k: int, places: Tokens, tokens: Tokens | None
    ) -> tuple[Tokens, Probabilities]:
        """The scores of `places`: of many, only the `k` highest of each chunk of them."""
        found, scores = [], []
        for begin in range(0, len(places), CHUNK):
            chunk = places[begin : begin + CHUNK]
            reached = logits[chunk] + self._scaled_noise(position, chunk, tokens)
            if len(places) > CHUNK:
                best = np.sort(top_tokens(reached, k))
                chunk, reached = chunk[best], reached[best]
            found.append(chunk)
            scores.append(reached)
        return np.concatenate(found), np.concatenate(scores)

    def _scaled_noise(
        self, position: int, places: Tokens, tokens: Tokens | None = None
    ) -> Probabilities:
        """Temperature times noise of the tokens at `places`."""
        ids = places if tokens is None else tokens[places]
        return self.params.temperature * self._noise.gumbel(position, ids)


def _without(tokens: Tokens, others: Tokens) -> Tokens:
    """`tokens` without `others`, which are ascending and at least one."""
    places = np.minimum(np.searchsorted(others, tokens), len(others) - 1)
    rest: Tokens = tokens[others[places] != tokens]
    return rest


def distribution(
    logits: Logits, params: SamplingParams, recent: Iterable[int] = ()
) -> tuple[Tokens, Probabilities]:
    """Tokens that pass the filters, ascending, and their probabilities after temperature.

    Raises ModelError if no logit is finite, and UsageError if a bias names an unknown token.
    """
    params.check_vocabulary(len(logits))
    logits = adjusted(logits, params, recent)
    best = best_logit(logits)
    if params.temperature == 0:
        return np.array([logits.argmax()], np.int64), np.ones(1)
    tokens = kept(logits, params, best)
    if tokens is None:
        tokens = np.arange(len(logits))
    weights = logits[tokens].astype(np.float64)
    weights -= best
    weights /= params.temperature
    possible = np.exp(weights, out=weights) > 0
    tokens, weights = tokens[possible], weights[possible]
    weights /= weights.sum()
    return tokens, weights
