"""What several drafters together say of a node: a mixture, whose weights are learnt.

Probabilities in, probabilities out; it knows no tree and nobody who guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.drafting.drafter import Guess

Opinion = Sequence[Guess]
"""What one source says of a node, best first; nothing if it knows nothing."""


class Pool:
    """Mixes one opinion after another into the first one (Jelinek and Mercer, 1980).

    P(token) = (1 - w) P_first(token) + w P_other(token). The weight w is the share of places at
    which the other one was the better authority, by how sure it was: an expectation-maximisation
    step for every node that stood. A source that is no use fades by itself.
    """

    n_bins = 5
    """Of how sure an opinion is."""
    fade = 0.998
    prior = 0.2
    prior_places = 4.0
    unlikely = 1e-3
    """What a source gives a token that it did not name."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}
        """By source and bin: fading sums of how often it was right rather, and of all places."""

    def pooled(self, opinions: Sequence[Opinion]) -> Sequence[Guess]:
        """One guess a token, best first."""
        said = [opinion for opinion in opinions if opinion]
        if not said:
            return ()
        mixed = said[0]
        for other in said[1:]:
            mixed = self._mixed(mixed, other)
        return mixed

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        """Learn from a node that stood, after which the target picked `token`."""
        said = [opinion for opinion in opinions if opinion]
        if len(said) < 2:
            return
        mixed = said[0]
        for other in said[1:]:
            sure = _together(other)
            bin_ = self._bin(other, sure)
            right, places = self._places(bin_)
            mine = right / places * self._given(other, token) / sure
            theirs = (1.0 - right / places) * self._given(mixed, token)
            self._seen[bin_] = (
                self.fade * right + mine / (mine + theirs),
                self.fade * places + 1.0,
            )
            mixed = self._mixed(mixed, other)

    def _mixed(self, first: Opinion, other: Opinion) -> list[Guess]:
        sure = _together(other)
        right, places = self._places(self._bin(other, sure))
        weight = right / places
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

    def _places(self, bin_: tuple[str, int]) -> tuple[float, float]:
        """At how many places an opinion like this was the better authority, and of how many."""
        return self._seen.get(bin_, (self.prior * self.prior_places, self.prior_places))

    def _bin(self, opinion: Opinion, sure: float) -> tuple[str, int]:
        return opinion[0].source, min(self.n_bins - 1, int(sure * self.n_bins))

    def _given(self, opinion: Opinion, token: int) -> float:
        said = (guess.confidence for guess in opinion if guess.token == token)
        return max(self.unlikely, next(said, 0.0))


def _together(opinion: Opinion) -> float:
    """How sure an opinion is: the chance that one of its guesses stands."""
    return max(1e-9, sum(guess.confidence for guess in opinion))
