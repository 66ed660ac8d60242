"""The sampler: picks a token from logits, the same for every runtime, with and without a draft.

Owns the noise of the draws and the window of recent tokens. Knows no model and no tree; filters are
in `filters`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from edgespec.errors import GrammarError, UsageError
from edgespec.ports.text_request import Constraint
from edgespec.rules.filters import (
    Logits,
    Probabilities,
    Tokens,
    adjusted,
    best_logit,
    kept,
    penalises,
    token_logprobs,
    top_tokens,
)
from edgespec.rules.noise import Noise
from edgespec.settings.config import SamplingParams
from edgespec.values import TokenLogprobs

__all__ = ["Sampler", "SamplingParams", "distribution"]

MAX_COMPARED = 8192
"""Most tokens that are all compared in a draw."""
N_FAVOURITES = 64
"""Number of most probable tokens that are compared first, so that few others can win a draw."""


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
        self.latest_logprobs: TokenLogprobs | None = None
        """Log probabilities of the latest accepted token and of `n_logprobs` alternatives; None
        without `n_logprobs`."""
        self.n_accepted = 0
        """Number of tokens of the text, the prompt's not counted."""
        self._n_coins = 0
        self._constraint = constraint
        self._n_logprobs = n_logprobs
        self._noise = Noise(params.seed)
        window = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._recent = deque(prompt, maxlen=window)

    def distribution(self, logits: Logits) -> tuple[Tokens, Probabilities]:
        """Tokens that may come next, ascending, and their probabilities. `logits` is [n_vocab]."""
        best_logit(logits)  # damaged logits are an error, even of forbidden tokens
        return distribution(self._allowed(logits), self.params, self._recent)

    def uniform(self) -> float:
        """The seed's next uniform draw from [0, 1), independent of the noise of `draw`."""
        self._n_coins += 1  # noise of places before the text
        noise = self._noise.gumbel(-self._n_coins, np.zeros(1, np.int64))
        return math.exp(-math.exp(-float(noise[0])))

    def draw(self, logits: Logits) -> int:
        """The next token, drawn from `distribution`. `logits` is [n_vocab]."""
        params = self.params
        possible = adjusted(self._allowed(logits), params, self._recent)
        place = int(possible.argmax())
        best = float(possible[place])
        if possible is not logits or not math.isfinite(best):
            best_logit(logits)  # damaged logits are an error, even of forbidden tokens
        if not math.isfinite(best):
            grammar = "" if self._constraint is None else " that the grammar allows here"
            raise UsageError(f"logit_bias forbids every token{grammar}: leave one out of it")
        if params.temperature == 0:
            return place
        places, scores = self._scores(possible, best, self.n_accepted, 1)
        return int(places[scores.argmax()])

    @property
    def needs_branches(self) -> bool:
        """True if what is foreseen depends on the tokens `ahead`, not only on their number."""
        return penalises(self.params) or self._constraint is not None

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
        try:
            allowed = self._allowed(logits, ahead, tokens) if n_ahead >= 0 else logits
        except GrammarError:  # it is raised where the token is drawn
            return [], []
        logits = adjusted(allowed, self.params, self._with(ahead), tokens)
        best = float(logits.max())
        if not math.isfinite(best):
            return [], []
        places: Tokens | None = None
        scores: np.ndarray = logits
        position = self.n_accepted + n_ahead
        if self.params.temperature > 0 and position >= 0:
            places, scores = self._scores(logits, best, position, k, tokens)
        order = top_tokens(scores, k)
        weights = np.exp(scores - scores[order[0]])
        shares = weights[order] / weights.sum()
        places = order if places is None else places[order]
        possible = np.isfinite(logits[places])
        shares = np.maximum(shares[possible], np.finfo(np.float32).tiny)
        found = places[possible] if tokens is None else tokens[places[possible]]
        return found.tolist(), shares.tolist()

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

    def _with(self, ahead: Sequence[int]) -> Iterable[int]:
        """The window of recent tokens after `ahead`."""
        if not ahead or not penalises(self.params):
            return self._recent
        recent = self._recent.copy()
        recent.extend(ahead)
        return recent

    def _scores(
        self, logits: Logits, best: float, position: int, k: int, tokens: Tokens | None = None
    ) -> tuple[Tokens, Probabilities]:
        """Places in `logits` that pass the filters and their `logit + temperature * noise`, the `k`
        highest among them. `best` is the highest logit. `tokens` are those of the places, by
        default the places themselves."""
        passing = kept(logits, self.params, best)
        if passing is not None:
            logits, tokens = logits[passing], passing if tokens is None else tokens[passing]
        places = np.arange(len(logits))
        if len(logits) > MAX_COMPARED:
            places = np.sort(top_tokens(logits, max(k, N_FAVOURITES)))
        scores = self._noisy(logits, position, places, tokens)
        least = float(logits[places].min())
        if len(places) < len(logits) and math.isfinite(least):
            level = (float(np.partition(scores, -k)[-k]) - least) / self.params.temperature
            lucky = self._noise.above(level, position, len(logits), tokens)
            others = np.setdiff1d(lucky, places, assume_unique=True)
            scores = np.append(scores, self._noisy(logits, position, others, tokens))
            places = np.append(places, others)
        return places if passing is None else passing[places], scores

    def _noisy(
        self, logits: Logits, position: int, places: Tokens, tokens: Tokens | None
    ) -> Probabilities:
        """Logits at `places` plus temperature times noise of the tokens there."""
        noise = self._noise.gumbel(position, places if tokens is None else tokens[places])
        scores: Probabilities = logits[places] + self.params.temperature * noise
        return scores


def distribution(
    logits: Logits, params: SamplingParams, recent: Iterable[int] = ()
) -> tuple[Tokens, Probabilities]:
    """Tokens that pass the filters, ascending, and their probabilities after temperature.

    Raises ModelError if no logit is finite.
    """
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
