"""Results of the processes that a bench starts; values only."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.ports.baselines import BaselineRun
from edgespec.values import SourceStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(BaselineRun):
    """One run of one mode, by the engine or the runtime's library; seconds are wall-clock time."""

    peak_bytes: int
    notes: tuple[str, ...] = ()
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses; empty for baselines."""

    @property
    def n_decoded(self) -> int:
        """Tokens of the passes that are counted and timed: not the first one, if the pass over the
        prompt's end gave it."""
        return sum(cost.n_tokens for cost in self.rounds)

    @property
    def tokens_per_s(self) -> float:
        return self.n_decoded / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def passes(self) -> int:
        return sum(cost.passes for cost in self.rounds)
