"""What several drafters together say of a node: a mixture, whose weights are learnt.

Probabilities in, probabilities out; it knows no tree and nobody who guesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from edgespec.engine.drafting.agreement import Agreement
from edgespec.engine.drafting.drafter import Guess

Opinion = Sequence[Guess]
"""What one source says of a node, best first; nothing if it knows nothing."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much an opinion counts beside another one, by its source and how sure it is.

    A weight is the share of places at which that opinion was the better authority: fading counts,
    of an expectation-maximisation step for every node that stood.
    """

    n_bins: ClassVar[int] = 5
    """Of how sure an opinion is."""
    fade: ClassVar[float] = 0.998
    prior: ClassVar[float] = 0.5
    """Of how sure it is, an opinion's weight before anything was seen."""
    prior_places: ClassVar[float] = 4.0
    most_recalled: ClassVar[float] = 50.0
    """Places, of what another run learnt."""

    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """At how many places it was the better authority, and of how many."""

    def of(self, opinion: Opinion, sure: float) -> float:
        right, places = self._seen(opinion, sure)
        return right / places

    def observe(self, opinion: Opinion, sure: float, was_better: float) -> Weights:
        """After a node that stood; `was_better` is a probability."""
        right, places = self._seen(opinion, sure)
        after = self.fade * right + was_better, self.fade * places + 1.0
        return Weights({**self.seen, self._kind(opinion, sure): after})

    def numbers(self) -> dict[str, float]:
        flat = {}
        for kind, (right, places) in self.seen.items():
            flat[f"{kind}:share"] = right / places
            flat[f"{kind}:places"] = places
        return flat

    def recalled(self, numbers: Mapping[str, float]) -> Weights:
        seen = {}
        for name, places in numbers.items():
            kind, _, what = name.rpartition(":")
            share = numbers.get(f"{kind}:share", -1.0)
            if what == "places" and places > 0 and 0 < share < 1:
                believed = min(places, self.most_recalled)
                seen[kind] = (share * believed, believed)
        return Weights({**self.seen, **seen})

    def _kind(self, opinion: Opinion, sure: float) -> str:
        return f"{opinion[0].source}:{min(self.n_bins - 1, int(sure * self.n_bins))}"

    def _seen(self, opinion: Opinion, sure: float) -> tuple[float, float]:
        prior = self.prior * min(1.0, sure) * self.prior_places
        return self.seen.get(self._kind(opinion, sure), (prior, self.prior_places))


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
    """What a source gives a token that it did not name."""

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
            sure = _together(other)
            weight = self.belief.weights.of(other, sure)
            mine = weight * self._given(other, token) / sure
            theirs = (1.0 - weight) * self._given(mixed, token)
            after = self.belief.weights.observe(other, sure, mine / (mine + theirs))
            mixed = self._mixed(mixed, other)
            self.belief = replace(self.belief, weights=after)
        if _agree(said):
            best = mixed[0]
            stood = best.token == token
            learnt = self.belief.agreement.observe(len(said), best.confidence, stood)
            self.belief = replace(self.belief, agreement=learnt)

    def _mixed(self, first: Opinion, other: Opinion) -> Opinion:
        sure = _together(other)
        weight = self.belief.weights.of(other, sure)
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
    """Whether several name the same token first."""
    return len(said) > 1 and len({opinion[0].token for opinion in said}) == 1


def _together(opinion: Opinion) -> float:
    """How sure an opinion is: the chance that one of its guesses stands."""
    return max(1e-9, sum(guess.confidence for guess in opinion))
