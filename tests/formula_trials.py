"""Trials whose speeds are given by formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgespec.tuning.candidates import Candidate, TuningJob
from edgespec.tuning.successive_halving import TrialLength
from edgespec.tuning.trial import TrialFigures

MIB = 1 << 20
BUDGET = 100 * MIB


def figures(tokens_per_s: float, peak_bytes: int = BUDGET, **more: float) -> TrialFigures:
    return TrialFigures(
        tokens_per_s=tokens_per_s,
        tokens_per_pass=4.0,
        n_tokens=48,
        n_texts=2,
        round_s=4 / tokens_per_s,
        compute_s=0.1,
        draft_s=0.01,
        load_s=1.0,
        peak_bytes=peak_bytes,
        bytes_per_pass=50 * MIB,
        disk_bytes_per_s=3e8,
        **more,
    )


@dataclass
class FormulaTrialRunner:
    """Every run takes a second of a clock that nothing else moves."""

    speed: Callable[[Candidate], float]
    seconds: float = 200.0
    ran: list[Candidate] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return self.seconds - len(self.ran)

    def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
        self.ran.append(candidate)
        return figures(self.speed(candidate))
