"""Hit rates of guesses by kind, which calibrate the confidences of sources without a model.

A value that is shown whether a guess was accepted and answers with its successor. It knows no tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class HitRates:
    """Rate by kind at which the target's token was among the guesses.

    Fading counts with a prior: a source that is no use for a text is soon not believed.
    """

    fade: ClassVar[float] = 0.99
    prior_places: ClassVar[float] = 3.0
    most_recalled: ClassVar[float] = 6.0
    """Places, of what another run learnt: one text repeats itself, the next does not."""

    first: Mapping[str, float]
    """The prior: all kinds that there are, and what they are believed to be worth."""
    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Counts of right guesses and of tries, by kind."""

    def of(self, kind: str) -> float:
        right, places = self._seen(kind)
        return right / places

    def observe(self, kind: str, was_right: bool) -> HitRates:
        right, places = self._seen(kind)
        after = self.fade * right + was_right, self.fade * places + 1.0
        return replace(self, seen={**self.seen, kind: after})

    def numbers(self) -> dict[str, float]:
        return {
            name: value
            for kind, (right, places) in self.seen.items()
            for name, value in ((f"{kind} right", right / places), (f"{kind} places", places))
        }

    def recalled(self, numbers: Mapping[str, float]) -> HitRates:
        seen = dict(self.seen)
        for kind in self.first:
            share = numbers.get(f"{kind} right", -1.0)
            places = min(self.most_recalled, numbers.get(f"{kind} places", 0.0))
            if 0 <= share <= 1 and places > 0:
                right, known = self._seen(kind)
                seen[kind] = right + share * places, known + places
        return replace(self, seen=seen)

    def _seen(self, kind: str) -> tuple[float, float]:
        prior = self.prior_places
        return self.seen.get(kind) or (self.first[kind] * prior, prior)
