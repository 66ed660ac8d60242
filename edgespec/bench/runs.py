"""Results of the processes that a bench starts. Values only: how they are measured is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.ports.baselines import BaselineRun
from edgespec.values import SourceStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(BaselineRun):
    """One run of one mode, by the engine or by the runtime's library. Seconds are wall-clock."""

    peak_bytes: int
    notes: tuple[str, ...] = ()
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses; empty for other libraries' modes."""
    n_passes: int | None = None
    """Passes that the texts shared; None counts those of the rounds."""

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def passes(self) -> int:
        if self.n_passes is not None:
            return self.n_passes
        return sum(cost.passes for cost in self.rounds)


@dataclass(frozen=True, slots=True)
class RawRead:
    """A plain read loop."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0
