"""Confidences of guesses: opinions of several sources, mixed in the log domain as in PAQ.

One online learner for all sources, updated with opinions and the token picked. Knows no tree, text
or drafter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from edgespec.engine.drafting.drafter import Guess, Opinion
from edgespec.engine.drafting.state_store import Numbers

EVIDENCE = 1.0 / 0.6
"""Prior offset of a source's log odds."""
UNNAMED_LOG_ODDS = -2.0
"""Log odds of a token that an exhaustive source rated but did not name."""
MIN_ERROR_RATE = 0.02
"""Prior probabilities of opinions are limited to [this, 1 - this]."""
MIN_PROBABILITY = 1e-6
"""Lower bound of a probability relative to the largest one."""
FADE = 0.99
"""Factor by which an observed node reduces a weight's precision, as texts differ."""
MIN_INFORMATION = 1e-3
MAX_WEIGHTS = 256
"""Most weights that are loaded from an earlier run."""


@dataclass(slots=True)
class Weight:
    """A learnt number with a Gaussian prior, updated by one Newton step of maximum likelihood per
    observed node."""

    value: float
    precision: float

    max_value = 9.0
    max_recalled = 10.0
    """Upper bound of the precision that is loaded from an earlier run."""

    def learn(self, gradient: float, information: float, longest_step: float) -> None:
        self.precision = FADE * self.precision + max(information, MIN_INFORMATION)
        step = max(-longest_step, min(longest_step, gradient / self.precision))
        self.value = max(-self.max_value, min(self.max_value, self.value + step))


class _WeighedOpinion(NamedTuple):
    """An opinion with its weights and the log odds that follow from them."""

    opinion: Opinion
    evidence: Weight
    sharpness: Weight
    log_odds: dict[int, float]
    """Log odds of each named token against all tokens that no source names."""
    gradients: dict[int, float]
    """Derivatives of the log odds with respect to the sharpness weight."""


class Mixer:
    """Mixes opinions and learns the weights of their sources.

    The log odds of a token are a sum over the sources that name it,

        log softmax(sharpness * log p(token)) + logit(chance) + evidence,

    so that agreeing sources reinforce each other. The sharpness is the inverse temperature of a
    source's shares, whatever the text's temperature: how far its scores are from the target's. Its
    logarithm is learnt for each source, the evidence for each source and kind of opinion.
    """

    def __init__(self) -> None:
        self._weights: dict[str, Weight] = {}

    def mix(self, opinions: Sequence[Opinion]) -> list[Guess]:
        """One guess for each named token, best first."""
        chances = _chances([self._weigh(opinion) for opinion in opinions])
        guesses = []
        for opinion in opinions:
            for token, probability in zip(opinion.tokens, opinion.probabilities, strict=True):
                chance = chances.pop(token, None)
                if chance is not None:
                    guesses.append(Guess(token, chance, probability, opinion.source))
        return sorted(guesses, key=attrgetter("confidence"), reverse=True)

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        """Learn from a node after which the target picked `token`."""
        weighed = [self._weigh(opinion) for opinion in opinions]
        chances = _chances(weighed)
        for one in weighed:
            named = sum(chances[each] for each in one.log_odds)
            one.evidence.learn((token in one.log_odds) - named, named * (1.0 - named), 1.0)
            gradients = one.gradients
            mean = sum(chances[each] * slope for each, slope in gradients.items())
            square = sum(chances[each] * slope * slope for each, slope in gradients.items())
            one.sharpness.learn(gradients.get(token, 0.0) - mean, square - mean * mean, 0.5)

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        return {
            f"{name}{what}": number
            for name, weight in self._weights.items()
            for what, number in (("", weight.value), (" precision", weight.precision))
        }

    def load_state_dict(self, numbers: Numbers) -> None:
        """Load the weights of an earlier run, with limited precision; invalid ones are ignored."""
        for name, value in list(numbers.items())[: 2 * MAX_WEIGHTS]:
            precision = min(Weight.max_recalled, numbers.get(f"{name} precision", 0.0))
            if abs(value) <= Weight.max_value and precision > 0:
                self._weights[name] = Weight(value, precision)

    def _weigh(self, opinion: Opinion) -> _WeighedOpinion:
        source = opinion.source
        evidence = self._weight(f"{source} {opinion.kind} evidence", EVIDENCE, 0.7)
        sharpness = self._weight(f"{source} sharpness", -math.log(opinion.temperature), 4.0)
        exponent = math.exp(sharpness.value)
        best = max(opinion.probabilities)
        logs = [exponent * math.log(max(p / best, MIN_PROBABILITY)) for p in opinion.probabilities]
        shares = [math.exp(log) for log in logs]
        total = sum(shares)
        mean = sum(map(float.__mul__, logs, shares)) / total
        base = evidence.value + _logit(opinion.chance) - math.log(total)
        return _WeighedOpinion(
            opinion,
            evidence,
            sharpness,
            {token: base + log for token, log in zip(opinion.tokens, logs, strict=True)},
            {token: log - mean for token, log in zip(opinion.tokens, logs, strict=True)},
        )

    def _weight(self, name: str, value: float, precision: float) -> Weight:
        weight = self._weights.get(name)
        if weight is None:
            weight = self._weights[name] = Weight(value, precision)
        return weight


def _chances(weighed: Sequence[_WeighedOpinion]) -> dict[int, float]:
    """Probability of each named token: softmax of the log odds and of 0 for all other tokens."""
    log_odds = {token: 0.0 for one in weighed for token in one.log_odds}
    for one in weighed:
        unnamed = UNNAMED_LOG_ODDS if one.opinion.is_exhaustive else 0.0
        for token in log_odds:
            log_odds[token] += one.log_odds.get(token, unnamed)
    highest = max(0.0, *log_odds.values()) if log_odds else 0.0
    shares = {token: math.exp(one - highest) for token, one in log_odds.items()}
    total = sum(shares.values()) + math.exp(-highest)
    return {token: share / total for token, share in shares.items()}


def _logit(p: float) -> float:
    p = min(max(p, MIN_ERROR_RATE), 1.0 - MIN_ERROR_RATE)
    return math.log(p / (1.0 - p))
