"""Confidences of guesses: opinions of several sources, mixed in the log domain as in PAQ.

One online learner for all sources, updated with opinions and the token picked. Knows no tree, text
or drafter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter

from edgespec.engine.sources.source import Opinion
from edgespec.rules.pacer import Guess

Numbers = Mapping[str, float]

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
MAX_SIZE = 9.0
"""Upper bound of a weight's absolute value."""
MAX_WEIGHTS, MAX_RECALLED = 256, 10.0
"""Most weights that are loaded from an earlier run, and their highest precision."""


class Mixer:
    """Mixes opinions and learns the weights of their sources.

    The log odds of a token are a sum over the sources that name it,

        log softmax(sharpness * log p(token)) + logit(chance) + evidence,

    so that agreeing sources reinforce each other. The sharpness is the inverse temperature of a
    source's shares, whatever the text's temperature: how far its scores are from the target's. Its
    logarithm is learnt for each source, the evidence for each source and kind of opinion. Each of
    these weights has a Gaussian prior, and takes one Newton step of maximum likelihood per observed
    node.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        """Learnt weights by name, and their precisions."""

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
            named = sum(chances[each] for each in opinion.tokens)
            logs = self._sharpened(opinion)
            shares = [math.exp(log) for log in logs]
            mean_log = sum(map(float.__mul__, logs, shares)) / sum(shares)
            # derivatives of the log odds with respect to the sharpness
            slopes = {each: log - mean_log for each, log in zip(opinion.tokens, logs, strict=True)}
            mean = sum(chances[each] * slope for each, slope in slopes.items())
            square = sum(chances[each] * slope * slope for each, slope in slopes.items())
            evidence = f"{opinion.source} {opinion.kind} evidence"
            self._learn(evidence, (token in slopes) - named, named * (1 - named), 1.0)
            slope = slopes.get(token, 0.0) - mean
            self._learn(f"{opinion.source} sharpness", slope, square - mean * mean, 0.5)

    def state_dict(self) -> Numbers:
        """State for `load_state_dict`."""
        return dict(self._numbers)

    def load_state_dict(self, numbers: Numbers) -> None:
        """Load the weights of an earlier run, with limited precision; invalid ones are ignored."""
        for name, value in list(numbers.items())[: 2 * MAX_WEIGHTS]:
            precision = min(MAX_RECALLED, numbers.get(f"{name} precision", 0.0))
            if abs(value) <= MAX_SIZE and precision > 0:
                self._numbers |= {name: value, f"{name} precision": precision}

    def _chances(self, opinions: Sequence[Opinion]) -> dict[int, float]:
        """Probability of each named token: softmax of the log odds and of 0 for all others."""
        said: list[dict[int, float]] = []
        for opinion in opinions:
            evidence = self._weight(f"{opinion.source} {opinion.kind} evidence", EVIDENCE, 0.7)
            logs = self._sharpened(opinion)
            base = evidence + _logit(opinion.chance) - math.log(sum(map(math.exp, logs)))
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

    def _sharpened(self, opinion: Opinion) -> list[float]:
        """Logs of an opinion's probabilities relative to the best one, at the learnt
        temperature."""
        prior = -math.log(opinion.temperature)
        exponent = math.exp(self._weight(f"{opinion.source} sharpness", prior, 4.0))
        best = max(opinion.probabilities)
        return [exponent * math.log(max(p / best, MIN_PROBABILITY)) for p in opinion.probabilities]

    def _weight(self, name: str, prior: float, precision: float) -> float:
        """A weight, its prior before the first observation."""
        if name not in self._numbers:
            self._numbers |= {name: prior, f"{name} precision": precision}
        return self._numbers[name]

    def _learn(self, name: str, gradient: float, information: float, longest_step: float) -> None:
        """Make a Newton step of a weight."""
        numbers, precision_name = self._numbers, f"{name} precision"
        precision = FADE * numbers[precision_name] + max(information, MIN_INFORMATION)
        step = max(-longest_step, min(longest_step, gradient / precision))
        numbers[name] = max(-MAX_SIZE, min(MAX_SIZE, numbers[name] + step))
        numbers[precision_name] = precision


def _logit(p: float) -> float:
    p = min(max(p, MIN_ERROR_RATE), 1.0 - MIN_ERROR_RATE)
    return math.log(p / (1.0 - p))
