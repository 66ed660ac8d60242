"""One trial: generates texts with given settings in a process of its own, within the budget.

Plans are also made there, because a plan includes the memory of its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError
from edgespec.jobs.launching import launch
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import open_models, plan
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size
from edgespec.values import GenerationResult

GROWTH_BYTES = 2 << 20
"""Growth of this process while it waits for trials."""
STALLED_SHARE = 0.1
"""Passes that stalled for a larger share of their time measure the speed of storage."""


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """Settings and prompts of a trial, which continues the prompts."""

    load: LoadSettings
    engine: EngineSettings
    prompts: tuple[str, ...]
    n_tokens: int
    """Most tokens of each text."""
    seconds: float
    """Time limit after loading; texts end early when it is reached."""
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Figures of one trial; seconds are means per round."""

    tokens_per_s: float
    """Harmonic mean over texts, each with equal weight."""
    tokens_per_pass: float
    n_tokens: int
    n_texts: int
    round_s: float
    compute_s: float
    draft_s: float
    """Seconds of drafting that were not overlapped with a pass."""
    load_s: float
    peak_bytes: int
    bytes_per_pass: int
    """Planned bytes; 0 if nothing is paged."""
    disk_bytes_per_s: float | None
    """Bytes per second of passes that stalled; None if none did."""
    notes: tuple[str, ...] = ()
    others: float = 0.0
    """Share of the cores that other processes used meanwhile."""


def run_trial(trial: TuningTrial, tick: Callable[[], None] = lambda: None) -> TrialFigures:
    """Run a trial in a process of its own, which keeps the budget together with this one. Raises
    the errors of loading and decoding."""
    trial = replace(trial, load=beside_this_process(trial.load))
    launched = launch(partial(write_texts, trial), tick=tick)
    return replace(launched.result, others=launched.others)


def plan_trial(load: LoadSettings, engine: EngineSettings) -> MemoryPlan:
    """The plan of a trial with these settings. Raises the errors of planning; that of a budget
    names the one that both processes need."""
    alone = beside_this_process(load)
    try:
        return launch(partial(_plan_here, alone, engine)).result
    except BudgetError as error:
        if alone is load or error.smallest_bytes is None:
            raise
        own = own_bytes()
        both = error.smallest_bytes + own
        said = f"this process, which measures another, takes {format_size(own)} of the budget"
        raise BudgetError(f"{said}: both need {format_size(both)}; {error}", both) from error


def beside_this_process(load: LoadSettings) -> LoadSettings:
    """`load` with what this process leaves of a given budget; `auto` counts it already."""
    if load.memory_budget == "auto":
        return load
    left = process.resolve_budget(load.memory_budget) - own_bytes()
    return load.model_copy(update={"memory_budget": max(1, left)})


def own_bytes() -> int:
    """Memory of this process while trials run."""
    return process.process_rss_bytes() + GROWTH_BYTES


def _plan_here(load: LoadSettings, engine: EngineSettings) -> MemoryPlan:
    """The plan in this process, which has imported the same modules as a trial."""
    return plan(load, engine)


def write_texts(trial: TuningTrial) -> TrialFigures:
    """Load the models of a trial and continue its prompts, cut to what leaves the texts room."""
    with open_models(trial.load, trial.engine) as models:
        if trial.load.draft is not None and models.draft is None:
            raise ModelError("; ".join(models.plan.notes))
        deadline = time.monotonic() + trial.seconds
        n_most = max(1, models.target.info.n_ctx - trial.n_tokens)
        results: list[GenerationResult] = []
        with Engine(models.target, models.draft, models.settled(trial.engine)) as engine:
            for number, prompt in enumerate(trial.prompts):
                left_s = deadline - time.monotonic()
                if results and left_s <= 0:
                    break
                until = time.monotonic() + left_s / (len(trial.prompts) - number)
                tokens = models.target.vocabulary.encode(prompt)
                request = TextRequest(tuple(tokens[:n_most]), trial.sampling, trial.n_tokens)
                results.append(_write_until(engine, request, until))
        return _figures(
            results, models.load_report["total"], models.plan.bytes_per_pass, models.plan.notes
        )


def _write_until(engine: Engine, text: TextRequest, deadline: float) -> GenerationResult:
    """The text, cut after the first round past the deadline."""
    request = engine.admit(text)
    with closing(engine.run(request)) as events:
        for _ in events:
            if time.monotonic() > deadline and request.tally.outcomes:
                break
    return request.result()


def _figures(
    results: list[GenerationResult], load_s: float, bytes_per_pass: int, notes: tuple[str, ...]
) -> TrialFigures:
    rounds = [cost for result in results for cost in result.speculation.round_costs]
    paces = [
        result.timings.decode_s / tokens
        for result in results
        if (tokens := sum(cost.n_tokens for cost in result.speculation.round_costs))
    ]
    waited = [
        cost.bytes_read / cost.pass_s
        for cost in rounds
        if cost.bytes_read and cost.stall_s > STALLED_SHARE * cost.pass_s
    ]
    n_passes = max(1, sum(cost.passes for cost in rounds))
    all_notes = (*notes, *(note for result in results for note in result.notes))
    return TrialFigures(
        tokens_per_s=1 / fmean(paces) if paces and fmean(paces) > 0 else 0.0,
        tokens_per_pass=sum(cost.n_tokens for cost in rounds) / n_passes,
        n_tokens=sum(len(result.tokens) for result in results),
        n_texts=len(results),
        round_s=fmean([cost.wall_s for cost in rounds] or [0.0]),
        compute_s=fmean([cost.compute_s for cost in rounds] or [0.0]),
        draft_s=fmean([cost.draft_s for cost in rounds] or [0.0]),
        load_s=load_s,
        peak_bytes=process.peak_rss_bytes(),
        bytes_per_pass=bytes_per_pass,
        disk_bytes_per_s=fmean(waited) if waited else None,
        notes=tuple(dict.fromkeys(all_notes)),
    )
