"""Runs the trials of `tune` in processes of their own, and plans its defaults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edgespec.errors import BudgetError, EdgespecError, ModelError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.candidates import Candidate, TuningJob
from edgespec.tuning.successive_halving import TrialLength
from edgespec.tuning.trial import TrialFigures, TuningTrial, plan_trial, run_trial


def planned(job: TuningJob) -> tuple[TuningJob, MemoryPlan]:
    """The job with the first usable draft as default, and the plan of its defaults.

    If none is usable and none was asked for, or the only one was the target's own layer (MTP), the
    default has no draft. Otherwise raises the error of planning with the first draft.
    """
    errors: list[EdgespecError] = []
    for draft in job.drafts:
        begun = job.beginning_with(draft)
        try:
            plan = plan_trial(begun.load, begun.engine)
        except (ModelError, BudgetError) as error:
            errors.append(error)
            continue
        if plan.has_draft:
            return begun, plan
    if errors and not job.has_optional_drafts:
        raise errors[0]
    alone = replace(job.beginning_with(None), drafts=())
    return alone, plan_trial(alone.load, alone.engine)


@dataclass(slots=True)
class ProcessTrialRunner:
    """A `TrialRunner` that runs trials in processes of their own."""

    prompts: tuple[str, ...]
    seconds: float
    show: Callable[[float], None]
    """Shows the share of the time that is over."""
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self._began_s)

    def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
        trial = TuningTrial(
            load=candidate.load(job.load),
            engine=candidate.engine(job.engine),
            prompts=self.prompts[: length.n_texts],
            n_tokens=length.n_tokens,
            seconds=length.seconds,
            sampling=job.sampling,
        )
        return run_trial(trial, self._tick)

    def _tick(self) -> None:
        self.show(min(1.0, 1 - self.left_s / self.seconds))
