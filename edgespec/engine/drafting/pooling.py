"""The mixture of several drafters' guesses for a node, with learnt weights.

Probabilities in, probabilities out; it knows no tree and nobody who guesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from edgespec.engine.drafting.agreement import Agreement, LogOdds, logit, sigmoid
from edgespec.engine.drafting.drafter import Guess

Opinion = Sequence[Guess]
"""Guesses of one source for a node, best first; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weight of an opinion beside those before it, from its confidence, theirs, and how often its
    source was the better one.

    w = sigmoid(logit(sure) - c logit(rival) + offset). A source's offset is learnt from every node
    that stood, by one Newton step of expectation-maximisation, from a Gaussian prior.
    """

    fade: ClassVar[float] = 0.998
    prior: ClassVar[LogOdds] = LogOdds(-1.5, 1.0)
    heed: ClassVar[float] = 0.7
    """c: what the others' sureness counts, beside an opinion's own."""
    largest: ClassVar[float] = 6.0
    most_recalled: ClassVar[float] = 10.0
    """A precision, of what another run learnt, which is believed half as surely."""

    seen: Mapping[str, LogOdds] = field(default_factory=dict)
    """Log odds of each source."""

    def of(self, opinion: Opinion, sure: float, rival: float = 0.5) -> float:
        """The weight of an opinion; `rival` is the chance of what was the best guess so far."""
        log_odds = logit(sure) - self.heed * logit(rival) + self._seen(opinion).offset
        return sigmoid(log_odds)

    def observe(
        self, opinion: Opinion, sure: float, was_better: float, rival: float = 0.5
    ) -> Weights:
        """After a node that stood; `was_better` is a probability."""
        weight, believed = self.of(opinion, sure, rival), self._seen(opinion)
        precision = self.fade * believed.precision + max(weight * (1.0 - weight), 1e-3)
        step = max(-1.0, min(1.0, (was_better - weight) / precision))
        offset = max(-self.largest, min(self.largest, believed.offset + step))
        return Weights({**self.seen, opinion[0].source: LogOdds(offset, precision)})

    def numbers(self) -> dict[str, float]:
        return {
            f"{source}:{what}": value
            for source, believed in self.seen.items()
            for what, value in believed._asdict().items()
        }

    def recalled(self, numbers: Mapping[str, float]) -> Weights:
        seen = dict(self.seen)
        for name, offset in numbers.items():
            source, _, what = name.rpartition(":")
            precision = 0.5 * min(self.most_recalled, numbers.get(f"{source}:precision", 0.0))
            if source and what == "offset" and abs(offset) <= self.largest and precision > 0:
                seen[source] = LogOdds(offset, precision)
        return Weights(seen)

    def _seen(self, opinion: Opinion) -> LogOdds:
        return self.seen.get(opinion[0].source, self.prior)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom of several sources to believe, and how much surer they are where they agree."""

    weights: Weights = field(default_factory=Weights)
    agreement: Agreement = field(default_factory=Agreement)

    def numbers(self) -> dict[str, float]:
        return self.weights.numbers() | self.agreement.numbers()

    def recalled(self, numbers: Mapping[str, float]) -> Trust:
        return Trust(self.weights.recalled(numbers), self.agreement.recalled(numbers))


class Pool:
    """Mixes one opinion after another into the first one (Jelinek and Mercer, 1980).

    P(token) = (1 - w) P_first(token) + w P_other(token), with learnt weights: a source that is no
    use fades by itself. What all of them name first is surer than that (see `Agreement`).
    """

    source = "pool"
    unlikely = 1e-3
    """Probability that a source gives a token that it did not name."""

    def __init__(self) -> None:
        self.belief = Trust()

    def fresh_belief(self, temperature: float) -> Trust:
        return Trust()

    def pooled(self, opinions: Sequence[Opinion]) -> Opinion:
        """One guess a token, best first."""
        said = [opinion for opinion in opinions if opinion]
        if not said:
            return ()
        mixed = said[0]
        for other in said[1:]:
            mixed = self._mixed(mixed, other)
        return self._agreed(mixed, len(said)) if _agree(said) else mixed

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        """Learn from a node that stood, after which the target picked `token`."""
        said = [opinion for opinion in opinions if opinion]
        if len(said) < 2:
            return
        mixed = said[0]
        for other in said[1:]:
            sure, rival = _together(other), mixed[0].confidence
            weight = self.belief.weights.of(other, sure, rival)
            mine = weight * self._given(other, token) / sure
            theirs = (1.0 - weight) * self._given(mixed, token)
            was_better = mine / (mine + theirs)
            after = self.belief.weights.observe(other, sure, was_better, rival)
            mixed = self._mixed(mixed, other)
            self.belief = replace(self.belief, weights=after)
        if _agree(said):
            best = mixed[0]
            stood = best.token == token
            learnt = self.belief.agreement.observe(len(said), best.confidence, stood)
            self.belief = replace(self.belief, agreement=learnt)

    def _mixed(self, first: Opinion, other: Opinion) -> Opinion:
        sure = _together(other)
        weight = self.belief.weights.of(other, sure, first[0].confidence)
        mixed = {
            guess.token: guess._replace(confidence=(1.0 - weight) * guess.confidence)
            for guess in first
        }
        for guess in other:
            more = weight * guess.confidence / sure
            known = mixed.get(guess.token)
            if known is None:
                mixed[guess.token] = guess._replace(confidence=min(1.0, more))
            else:
                confidence = min(1.0, known.confidence + more)
                mixed[guess.token] = known._replace(confidence=confidence)
        return sorted(mixed.values(), key=lambda guess: -guess.confidence)

    def _agreed(self, mixed: Opinion, n_sources: int) -> Opinion:
        best, *others = mixed
        chance = self.belief.agreement.of(n_sources, best.confidence)
        left = (1.0 - chance) / max(1e-9, 1.0 - best.confidence)
        return [
            best._replace(confidence=chance),
            *(other._replace(confidence=left * other.confidence) for other in others),
        ]

    def _given(self, opinion: Opinion, token: int) -> float:
        said = (guess.confidence for guess in opinion if guess.token == token)
        return max(self.unlikely, next(said, 0.0))


def _agree(said: Sequence[Opinion]) -> bool:
    """True if several name the same token first."""
    return len(said) > 1 and len({opinion[0].token for opinion in said}) == 1


def _together(opinion: Opinion) -> float:
    """Confidence of an opinion: the probability that one of its guesses is accepted."""
    return max(1e-9, sum(guess.confidence for guess in opinion))
