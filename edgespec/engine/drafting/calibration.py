"""Makes a draft model's confidences honest: what it calls 0.8 shall stand four times in five.

A value that is shown what a draft offered and what the target picked, and answers with its
successor. It knows logits and probabilities; no tree, no model and no rule that uses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from edgespec.engine.sampling import Logits, top_tokens
from edgespec.errors import ModelError


class Offer(NamedTuple):
    """A draft model's best tokens after one node, best first."""

    tokens: list[int]
    logits: list[float]
    """Less the best one."""
    share: float
    """Share of the total probability that these tokens have, at the assumed temperature."""
    best: float
    """The first token's probability, at temperature 1."""

    @property
    def probabilities(self) -> list[float]:
        """At temperature 1: the draft's own distribution."""
        return [self.best * math.exp(z) for z in self.logits]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Confidences are softmax(logits / T) over the offered tokens, times the chance that the
    target's token is among them at all.

    T is learnt by maximum likelihood from every node that stood: Newton steps on -log(T), one an
    observation, from a weak Gaussian prior. The chance is sigmoid(logit(share) + offset), learnt
    likewise. Both beliefs narrow with what is observed and widen as it fades: texts differ.
    """

    fade: ClassVar[float] = 0.998
    """Kept of a belief's precision, an observed node."""
    coldest: ClassVar[float] = 0.05
    warmest: ClassVar[float] = 5.0

    most_recalled: ClassVar[float] = 20.0
    """A precision, of what another run learnt: another text is soon more telling."""

    sharpness: float
    """-log(T)."""
    sharpness_precision: float = 4.0
    offset: float = 0.0
    offset_precision: float = 0.5

    @classmethod
    def around(cls, temperature: float) -> Calibration:
        """The belief before the first observation."""
        return cls(-math.log(temperature))

    @property
    def temperature(self) -> float:
        return math.exp(-self.sharpness)

    def numbers(self) -> dict[str, float]:
        return asdict(self)

    def recalled(self, numbers: Mapping[str, float]) -> Calibration:
        known = {name: numbers.get(name, value) for name, value in asdict(self).items()}
        for name in ("sharpness_precision", "offset_precision"):
            known[name] = min(self.most_recalled, max(asdict(self)[name], known[name]))
        known["sharpness"] = self._possible(known["sharpness"])
        known["offset"] = max(-9.0, min(9.0, known["offset"]))
        return Calibration(**known)

    def offer(self, logits: Logits, k: int) -> Offer:
        """The `k` best tokens of `logits` [n_vocab]. Raises ModelError if no logit is finite."""
        best = logits.max()
        if not math.isfinite(best):
            raise ModelError(f"the draft's best logit is {best}: its weights are damaged")
        tokens = top_tokens(logits, k)
        below = logits - best
        mine = below[tokens]
        weights = np.exp(below * np.float32(1 / self.temperature))
        share = float(weights[tokens].sum() / weights.sum())
        total = float(np.exp(below, out=below).sum())
        return Offer(tokens.tolist(), mine.tolist(), min(1.0, share), 1.0 / total)

    def confidences(self, offer: Offer) -> list[float]:
        """The chance of each offered token to be the target's."""
        chance = _sigmoid(_logit(offer.share) + self.offset)
        return [chance * p for p in self._among(offer.logits)]

    def observe(self, offer: Offer, token: int) -> Calibration:
        """The belief after one node that stood, and where the target picked `token`."""
        chance = _sigmoid(_logit(offer.share) + self.offset)
        was_offered = token in offer.tokens
        precision = self.fade * self.offset_precision + max(chance * (1.0 - chance), 1e-3)
        offset = self.offset + _within(1.0, (was_offered - chance) / precision)
        after = replace(self, offset=offset, offset_precision=precision)
        return after._sharpened(offer, offer.tokens.index(token)) if was_offered else after

    def _sharpened(self, offer: Offer, picked: int) -> Calibration:
        beta = math.exp(self.sharpness)
        p = self._among(offer.logits)
        mean = sum(q * z for q, z in zip(p, offer.logits, strict=True))
        variance = sum(q * (z - mean) ** 2 for q, z in zip(p, offer.logits, strict=True))
        precision = self.fade * self.sharpness_precision + beta * beta * variance
        step = beta * (offer.logits[picked] - mean) / precision
        sharpness = self._possible(self.sharpness + _within(0.5, step))
        return replace(self, sharpness=sharpness, sharpness_precision=precision)

    def _possible(self, sharpness: float) -> float:
        return max(-math.log(self.warmest), min(-math.log(self.coldest), sharpness))

    def _among(self, logits: Sequence[float]) -> list[float]:
        """softmax(logits / T) of the offered tokens, the best of which is at 0."""
        beta = math.exp(self.sharpness)
        weights = [math.exp(beta * z) for z in logits]
        total = sum(weights)
        return [weight / total for weight in weights]


def _within(limit: float, step: float) -> float:
    """One observation moves a belief by so much at most."""
    return max(-limit, min(limit, step))


def _logit(p: float) -> float:
    p = min(max(p, 0.01), 0.99)
    return math.log(p / (1.0 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else 1.0 - 1.0 / (1.0 + math.exp(x))
