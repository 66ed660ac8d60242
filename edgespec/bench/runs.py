"""Results of the processes that a bench starts. Values only: how they are measured is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.values import RoundCost, SourceStats, TextCost


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run of one mode. Seconds are wall-clock."""

    tokens: tuple[int, ...]
    n_prompt_tokens: int
    load_s: float
    prompt_s: float
    decode_s: float
    rounds: tuple[RoundCost, ...]
    bytes_read: int
    """While decoding."""
    peak_bytes: int
    notes: tuple[str, ...] = ()
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses; empty for other libraries' modes."""
    texts: tuple[TextCost, ...] = ()
    """Texts that were decoded at once; their prompts are part of `decode_s` then. Empty for one."""
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


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Memory that the models take."""

    resident_bytes: int
    """The whole process with the target alone, all its weights in memory."""
    obstacle: str = ""
    """Reason for which loading leaves the draft out; empty where it does not."""
