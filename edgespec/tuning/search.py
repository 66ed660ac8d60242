"""Finds the settings with the most tokens a second: predicts those of all, has the best confirmed.

It decides what is tried; what is known before, `measuring` says, and which one wins, `confirming`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.confirming import (
    Trial,
    affordable_trials,
    confirm,
    gain_of,
    noise_of,
    winner,
)
from edgespec.tuning.cost_model import Choice, Prediction, Speeds, predict
from edgespec.tuning.gpu_runs import (
    TIME_SHARE,
    GpuShare,
    RunLength,
    run_shares,
    shares_of_target,
)
from edgespec.tuning.measuring import Lab, Measured, Say, Wanted, measure
from edgespec.tuning.offloads import Offload

DRAFT_MAXIMA = (4, 8, 16, 32, 48, 64, 96)
WORTH_A_RUN = 1.01
"""Times the default's prediction: what is predicted to bring less is not tried."""
N_FINALISTS = 3
PLANNING_SHARE, LEAST_PLANNING_S = 0.1, 2.0
"""Of what is left of the time: an ONNX model takes a second for each plan."""
ALIKE = 1.5
"""Times as many tokens, up to which texts are as long."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found."""

    measured: Measured
    plan: MemoryPlan
    """Of the chosen settings."""
    trials: tuple[Trial, ...]
    """The default's first."""
    chosen: Choice
    noise: float
    """How far ratios of the same settings typically lay apart from turn to turn, as a share."""
    n_considered: int
    length: RunLength | None = None
    """Of the confirming runs, if there were any."""
    gpu_shares: tuple[GpuShare, ...] = ()
    """Of the target, with the chosen settings otherwise: they change the text."""
    notes: tuple[str, ...] = ()

    @property
    def wanted(self) -> Wanted:
        return self.measured.wanted

    @property
    def is_usual(self) -> bool:
        return self.chosen == self.wanted.usual

    @property
    def untried(self) -> Trial | None:
        """What is predicted to be best and could not run, where a run takes too long here."""
        others = self.trials[1:]
        ran = any(trial.rates or trial.complaint for trial in others)
        return others[0] if others and not ran else None

    @property
    def best(self) -> Trial:
        return next(trial for trial in self.trials if trial.choice == self.chosen)

    @property
    def confirmed(self) -> float:
        """What the default's runs had of the tokens a second that were predicted for it. Runs of
        fewer texts say nothing of that, as these differ sixfold in how well they are guessed, nor
        do longer ones, which have more to guess from and less to learn."""
        usual, length = self.trials[0], self.length
        rate = usual.predicted.tokens_per_s
        if length is None or not usual.rates or not rate:
            return 1.0
        n_texts, first = self.measured.n_texts, self.measured.first
        is_as_long = 1 / ALIKE <= length.n_tokens * n_texts / max(first.n_tokens, 1) <= ALIKE
        is_alike = length.n_texts == n_texts and is_as_long
        return usual.tokens_per_s / rate if is_alike else 1.0

    @property
    def others(self) -> float:
        """Share of the cores that other processes took, the most of the confirming runs."""
        return max(trial.others for trial in self.trials)

    @property
    def gain(self) -> float:
        """Over the default, as a share: the median of ratios of runs in the same turn."""
        return gain_of(self.best, self.trials[0])


def tune(lab: Lab, wanted: Wanted, say: Say = lambda _: None) -> Tuned:
    """Measure, search, confirm. Raises what planning and loading raise."""
    measured = measure(lab, wanted, say)
    usual, usual_plan, speeds = wanted.usual, measured.plan, measured.speeds
    notes: list[str] = []
    choices = _promising_first(usual, candidates(wanted, speeds), usual_plan, speeds)
    plans = _plans(lab, wanted, choices)
    ranked = sorted(
        _predictions(choices, plans, speeds, usual_plan, notes),
        key=lambda found: -found[1].tokens_per_s,
    )
    expected = measured.expected
    promising = [
        Trial(choice, prediction)
        for choice, prediction in ranked
        if choice != usual and prediction.tokens_per_s > WORTH_A_RUN * expected.tokens_per_s
    ]
    usual_trial = Trial(usual, expected)
    trials = [usual_trial, *_unlike(promising)]
    shares = shares_of_target(measured)
    length: RunLength | None = None
    n_affordable = affordable_trials(lab, measured)
    if n_affordable >= min(2, len(trials)):
        trials = trials[:n_affordable]
        length = confirm(lab, measured, trials, say, TIME_SHARE * lab.left_s if shares else 0.0)
    else:
        usual_trial.rates.append(measured.first.tokens_per_s)
        usual_trial.peak_bytes = measured.first.peak_bytes
    noise = max((noise_of(trial, usual_trial) for trial in trials), default=0.0)
    chosen = winner(trials)
    tried = tuple(run_shares(lab, measured, chosen, shares, length, say))
    notes += [trial.complaint for trial in trials if trial.complaint]
    notes += [found for found in tried if isinstance(found, str)]
    return Tuned(
        measured=measured,
        plan=plans.get(_memory_of(chosen)) or usual_plan,
        trials=tuple(trials),
        chosen=chosen,
        noise=noise,
        n_considered=len(ranked),
        length=length,
        gpu_shares=tuple(found for found in tried if isinstance(found, GpuShare)),
        notes=tuple(dict.fromkeys(notes)),
    )


def candidates(wanted: Wanted, speeds: Speeds) -> Iterable[Choice]:
    """Every choice that what was measured can say something of. None changes the text."""
    usual, settled = wanted.usual, wanted.settled
    threads = [usual.threads] if "threads" in settled else list(speeds.compute)
    maxima = [usual.draft_max] if "draft_max" in settled else [None, *DRAFT_MAXIMA]
    overlaps = {usual.overlap} if "no_overlap" in settled else {True, False}
    for target_threads in threads:
        for (draft, draft_threads), n, overlap in product(speeds.yields, maxima, overlaps):
            if "threads_draft" in settled and draft_threads != (usual.threads_draft or 0):
                continue
            own = None if draft_threads == target_threads else draft_threads
            yield replace(
                usual,
                draft=draft,
                threads=target_threads,
                threads_draft=own,
                draft_max=n,
                overlap=overlap,
            )
        for (draft, offload), n, overlap in product(speeds.offloaded, maxima, overlaps):
            yield replace(
                usual,
                draft=draft,
                threads=target_threads,
                draft_max=n,
                overlap=overlap,
                offload=offload,
            )
        if not (settled & {"draft", "draft_max"}) or usual.draft is None:
            alone = replace(usual, draft=None, threads=target_threads, threads_draft=None)
            yield alone
            if speeds.lookups and "lookup" not in settled:
                yield from (replace(alone, draft_max=n, lookup=True) for n in maxima)


def _promising_first(
    usual: Choice, others: Iterable[Choice], plan: MemoryPlan, speeds: Speeds
) -> list[Choice]:
    """The usual choice, then the others, as if all of them had its memory."""
    found = (choice for choice in dict.fromkeys(others) if choice != usual)
    return [usual, *sorted(found, key=lambda one: -predict(one, plan, speeds).tokens_per_s)]


_Memory = tuple[Path | None, int | None, Offload | None, bool]


def _memory_of(choice: Choice) -> _Memory:
    """What of a choice decides who gets which bytes."""
    return choice.draft, choice.draft_max, choice.offload, choice.guesses


def _plans(lab: Lab, wanted: Wanted, choices: Sequence[Choice]) -> dict[_Memory, MemoryPlan]:
    """Those that the budget allows. Where a plan takes long, only of the first choices."""
    asked: dict[_Memory, Choice] = {}
    for choice in choices:
        asked.setdefault(_memory_of(choice), choice)
    settings = [(one.load(wanted.load), one.engine) for one in asked.values()]
    found = lab.plans(settings, max(PLANNING_SHARE * lab.left_s, LEAST_PLANNING_S))
    return {
        memory: plan
        for memory, plan in zip(asked, found, strict=True)
        if isinstance(plan, MemoryPlan)
    }


def _predictions(
    choices: Iterable[Choice],
    plans: Mapping[_Memory, MemoryPlan],
    speeds: Speeds,
    usual: MemoryPlan,
    notes: list[str],
) -> Iterable[tuple[Choice, Prediction]]:
    """Of choices that fit and keep the text: a prompt that is read in batches of another size can
    continue in another way."""
    for choice in choices:
        plan = plans.get(_memory_of(choice))
        if plan is None:
            continue
        if plan.batch_size != usual.batch_size:
            notes.append(
                f"left out: {choice.label}, with which prompts are read in batches of "
                f"{plan.batch_size} tokens instead of {usual.batch_size}; that can change the text"
            )
            continue
        yield choice, predict(choice, plan, speeds)


def _unlike(trials: Sequence[Trial]) -> list[Trial]:
    """The best ones that do not all try the same: each differs from those before it in more than
    the size of a tree that is not reached."""
    found: list[Trial] = []
    for trial in trials:
        alike = [other for other in found if _tried(other.choice) == _tried(trial.choice)]
        if len(alike) < 1 and len(found) < N_FINALISTS:
            found.append(trial)
    return found


def _tried(choice: Choice) -> tuple[object, ...]:
    return choice.draft, choice.threads, choice.threads_draft, choice.offload, choice.lookup
