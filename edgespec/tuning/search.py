"""Finds the settings with the most tokens a second: predicts those of all, confirms the best by
short runs in turn.

It decides what is tried and chosen; what is known before, `measuring` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median

from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import Choice, Prediction, Speeds, predict
from edgespec.tuning.gpu_runs import (
    TIME_SHARE,
    GpuShare,
    run_choice,
    run_shares,
    shares_of_target,
)
from edgespec.tuning.measuring import Lab, Measured, Say, Wanted, measure
from edgespec.tuning.offloads import Offload

DRAFT_MAXIMA = (4, 8, 16, 32, 48, 64, 96)
LEAST_GAIN = 0.03
"""What is gained by less is taken for noise, however quiet the runs were."""
WORTH_A_RUN = 1.01
"""Times the default's prediction: what is predicted to bring less is not tried."""
N_FINALISTS = 3
LEAST_TURNS, MOST_TURNS = 2, 6
LIKELY_TURNS = 2
"""Of all, that there is time for."""
LEAST_CONFIRMING_S = 20.0
"""Even where the time is over: what only was predicted is not chosen."""
GIVEN_UP = 0.05
"""What is slower than the defaults by more is not run again."""
DOUBT = 1.5
"""Times the typical deviation of its ratios, which a gain has to exceed."""
LEAST_TOKENS, MOST_TOKENS = 8, 96
"""Of each text of a confirming run. Short ones favour small trees: guesses get better as a text
goes on."""
LEAST_RUN_S = 1.0
PATIENCE = 4
"""Times its share of the time, after which a confirming run is cut short."""


@dataclass(slots=True)
class Trial:
    """A choice that was confirmed, or not, by short runs."""

    choice: Choice
    predicted: Prediction
    rates: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    others: float = 0.0
    """Share of the cores that other processes took, the most beside its runs."""
    complaint: str = ""
    """Why it is left out, whatever it reached."""

    @property
    def tokens_per_s(self) -> float:
        return median(self.rates) if self.rates else 0.0


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
        """What the default's runs had of the tokens a second that were predicted for it."""
        usual = self.trials[0]
        rate = usual.predicted.tokens_per_s
        return usual.tokens_per_s / rate if usual.rates and rate else 1.0

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
    choices = list(dict.fromkeys([usual, *candidates(wanted, speeds)]))
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
    shares, n_tokens = shares_of_target(measured), 0
    n_affordable = _affordable_trials(lab, measured)
    if n_affordable >= min(2, len(trials)):
        trials = trials[:n_affordable]
        n_tokens = _confirm(lab, measured, trials, say, TIME_SHARE * lab.left_s if shares else 0.0)
    else:
        usual_trial.rates.append(measured.first.tokens_per_s)
        usual_trial.peak_bytes = measured.first.peak_bytes
    noise = max((noise_of(trial, usual_trial) for trial in trials), default=0.0)
    chosen = _winner(trials)
    tried = tuple(run_shares(lab, measured, chosen, shares, n_tokens, say))
    notes += [trial.complaint for trial in trials if trial.complaint]
    notes += [found for found in tried if isinstance(found, str)]
    return Tuned(
        measured=measured,
        plan=plans.get(_memory_of(chosen)) or usual_plan,
        trials=tuple(trials),
        chosen=chosen,
        noise=noise,
        n_considered=len(ranked),
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
            yield replace(usual, draft=None, threads=target_threads, threads_draft=None)


_Memory = tuple[Path | None, int | None, Offload | None]


def _memory_of(choice: Choice) -> _Memory:
    """What of a choice decides who gets which bytes."""
    return choice.draft, choice.draft_max, choice.offload


def _plans(lab: Lab, wanted: Wanted, choices: Sequence[Choice]) -> dict[_Memory, MemoryPlan]:
    """Those that the budget allows."""
    asked = {_memory_of(choice): choice for choice in choices}
    found = lab.plans([(one.load(wanted.load), one.engine) for one in asked.values()])
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
                f"left out: {_says(choice)}, with which prompts are read in batches of "
                f"{plan.batch_size} tokens instead of {usual.batch_size}; that can change the text"
            )
            continue
        yield choice, predict(choice, plan, speeds)


def _says(choice: Choice) -> str:
    if choice.draft is None:
        return "no draft"
    size = f" with {choice.draft_max}" if choice.draft_max else ""
    return choice.draft.name + size + (f" {choice.offload.says}" if choice.offload else "")


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
    return choice.draft, choice.threads, choice.threads_draft, choice.offload


def _confirm(
    lab: Lab, measured: Measured, trials: Sequence[Trial], say: Say, spare_s: float = 0.0
) -> int:
    """Short runs of every trial in turn, as many turns as there is time for until `spare_s` are
    left. All write the same tokens, so as many as fit into a share of the time: the answer is how
    many of each text."""
    if len(trials) == 1:
        say("nothing is predicted to beat the defaults")
    usual, *others = trials
    share_s = max((lab.left_s - spare_s) / (LIKELY_TURNS * len(trials)), LEAST_RUN_S)
    n_texts = max(1, len(measured.first.texts))
    n_tokens = int(share_s * measured.first.tokens_per_s / n_texts)
    n_tokens = min(max(n_tokens, LEAST_TOKENS), MOST_TOKENS)
    turn, turn_s = 0, 0.0
    while turn < (MOST_TURNS if others else LEAST_TURNS):
        left = [usual, *(t for t in others if not t.complaint and gain_of(t, usual) > -GIVEN_UP)]
        is_enough = turn >= LEAST_TURNS and (len(left) == 1 or lab.left_s - spare_s <= turn_s)
        if is_enough:
            break
        before_s = lab.left_s
        runs = []
        # the one that came last comes first in the next turn: what drifts hits all alike
        for trial in left if turn % 2 == 0 else left[::-1]:
            say(f"run {turn + 1} of {_says(trial.choice)}")
            written = run_choice(lab, measured, trial.choice, n_tokens, PATIENCE * share_s)
            if isinstance(written, str):
                trial.complaint = written
                continue
            runs.append((trial, written))
            trial.peak_bytes = max(trial.peak_bytes, written.peak_bytes)
        turn_s = before_s - lab.left_s
        if any(run.is_disturbed for _, run in runs) and lab.left_s - spare_s > turn_s > 0:
            say("other processes computed beside that: it is run again")
            continue
        for trial, run in runs:
            trial.rates.append(run.tokens_per_s)
            trial.others = max(trial.others, run.others)
        turn += 1
    return n_tokens


def _affordable_trials(lab: Lab, measured: Measured) -> int:
    """So many can make the fewest turns in the time that is left, or soon after."""
    seconds = max(lab.left_s, LEAST_CONFIRMING_S)
    return int(seconds / max(LEAST_TURNS * measured.shortest_run_s, 1e-3))


def gain_of(trial: Trial, usual: Trial) -> float:
    """Paired: the runs of one turn lie next to each other in time."""
    ratios = _ratios(trial, usual)
    return median(ratios) - 1 if ratios else 0.0


def noise_of(trial: Trial, usual: Trial) -> float:
    """How far its ratios typically lie from their median: a turn that was disturbed does not move
    it much."""
    ratios = _ratios(trial, usual)
    return median(abs(ratio - median(ratios)) for ratio in ratios) if ratios else 0.0


def _ratios(trial: Trial, usual: Trial) -> list[float]:
    """Of the turns that it took part in, which are the first ones."""
    return [rate / other for rate, other in zip(trial.rates, usual.rates, strict=False) if other]


def _winner(trials: Sequence[Trial]) -> Choice:
    """The one that gained most; the default unless it was beaten by more than the noise, and again
    after the first turn."""
    usual, *others = trials
    winner, best_gain = usual, 0.0
    for trial in others:
        if trial.complaint:
            continue
        gain = gain_of(trial, usual)
        least = max(DOUBT * noise_of(trial, usual), LEAST_GAIN)
        if len(trial.rates) >= LEAST_TURNS and gain > max(least, best_gain):
            winner, best_gain = trial, gain
    return winner.choice
