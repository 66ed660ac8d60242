"""Confidences of guesses: opinions of several sources, mixed in the log domain as in PAQ.

One online learner for all sources, updated with opinions and the token picked. Knows no tree, text
or drafter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

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
        chances = self._chances(opinions)
        guesses = []
        for opinion in opinions:
            for token, probability in zip(opinion.tokens, opinion.probabilities, strict=True):
                chance = chances.pop(token, None)
                if chance is not None:
                    guesses.append(Guess(token, chance, probability, opinion.source))
        return sorted(guesses, key=attrgetter("confidence"), reverse=True)

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        """Learn from a node after which the target picked `token`."""
        chances = self._chances(opinions)
        for opinion in opinions:
            evidence, sharpness = self._weights_of(opinion)
            named = sum(chances[each] for each in opinion.tokens)
            logs = _sharpened(opinion, sharpness)
            shares = [math.exp(log) for log in logs]
            mean_log = sum(map(float.__mul__, logs, shares)) / sum(shares)
            # derivatives of the log odds with respect to the sharpness
            slopes = {each: log - mean_log for each, log in zip(opinion.tokens, logs, strict=True)}
            mean = sum(chances[each] * slope for each, slope in slopes.items())
            square = sum(chances[each] * slope * slope for each, slope in slopes.items())
            evidence.learn((token in slopes) - named, named * (1.0 - named), 1.0)
            sharpness.learn(slopes.get(token, 0.0) - mean, square - mean * mean, 0.5)

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

    def _chances(self, opinions: Sequence[Opinion]) -> dict[int, float]:
        """Probability of each named token: softmax of the log odds and of 0 for all others."""
        said: list[dict[int, float]] = []
        for opinion in opinions:
            evidence, sharpness = self._weights_of(opinion)
            logs = _sharpened(opinion, sharpness)
            base = evidence.value + _logit(opinion.chance) - math.log(sum(map(math.exp, logs)))
            said.append(
                {token: base + log for token, log in zip(opinion.tokens, logs, strict=True)}
            )
        log_odds = {token: 0.0 for its_odds in said for token in its_odds}
        for opinion, its_odds in zip(opinions, said, strict=True):
            unnamed = UNNAMED_LOG_ODDS if opinion.is_exhaustive else 0.0
            for token in log_odds:
                log_odds[token] += its_odds.get(token, unnamed)
        highest = max(0.0, *log_odds.values()) if log_odds else 0.0
        shares = {token: math.exp(one - highest) for token, one in log_odds.items()}
        total = sum(shares.values()) + math.exp(-highest)
        return {token: share / total for token, share in shares.items()}

    def _weights_of(self, opinion: Opinion) -> tuple[Weight, Weight]:
        """The evidence of an opinion's source and kind, and the sharpness of its source."""
        source = opinion.source
        evidence = self._weight(f"{source} {opinion.kind} evidence", EVIDENCE, 0.7)
        return evidence, self._weight(f"{source} sharpness", -math.log(opinion.temperature), 4.0)

    def _weight(self, name: str, value: float, precision: float) -> Weight:
        weight = self._weights.get(name)
        if weight is None:
            weight = self._weights[name] = Weight(value, precision)
        return weight


def _sharpened(opinion: Opinion, sharpness: Weight) -> list[float]:
    """Logs of an opinion's probabilities relative to the best one, at the learnt temperature."""
    exponent, best = math.exp(sharpness.value), max(opinion.probabilities)
    return [exponent * math.log(max(p / best, MIN_PROBABILITY)) for p in opinion.probabilities]


def _logit(p: float) -> float:
    p = min(max(p, MIN_ERROR_RATE), 1.0 - MIN_ERROR_RATE)
    return math.log(p / (1.0 - p))
