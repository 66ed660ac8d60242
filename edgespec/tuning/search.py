"""Finds the settings with the most tokens a second: measures, predicts, confirms by short runs.

It decides what is measured and chosen; who measures is behind the `Lab`, so that tests bring a
device whose best settings they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Protocol

from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import (
    Choice,
    Prediction,
    Speeds,
    calibrated,
    compute_places,
    disk_rate,
    draft_alone,
    predict,
)
from edgespec.tuning.measurements import ReadSpeed, Refused, Replayed, Text, Written

PASS_SIZES = (1, 4, 16, 49)
"""Nodes of timed passes, the root counted."""
TREE_SIZES = (1, 4, 8, 16, 32, 48, 64)
DRAFT_MAXIMA = (4, 8, 16, 32, 48, 64)
WRITTEN_TOKENS = 40
"""Of each text of the first run."""
LEAST_GAIN = 0.03
"""What is gained by less is taken for noise, however quiet the runs were."""
WORTH_A_RUN = 1.01
"""Times the default's prediction: what is predicted to bring less is not tried."""
N_FINALISTS = 3
LEAST_TURNS, MOST_TURNS = 2, 4
READ_BOUND = 0.8
"""Where computing takes less than this share of reading, its threads do not matter."""


class Lab(Protocol):
    """Who measures. Each call that loads models keeps their budget."""

    def plans(
        self, asked: Sequence[tuple[LoadSettings, EngineSettings]]
    ) -> Sequence[MemoryPlan | Refused]:
        """Who would get which bytes with each of these, in processes like those that measure."""

    def read_speeds(self) -> Sequence[ReadSpeed]:
        """Of the disk with the target: the engine's own kind of reads first."""

    def write(
        self,
        load: LoadSettings,
        engine: EngineSettings,
        n_tokens: int,
        pass_sizes: tuple[int, ...] = (),
    ) -> Written: ...

    def replay(self, load: LoadSettings, texts: tuple[Text, ...]) -> Replayed:
        """Of the model of `load`, a draft."""

    @property
    def left_s(self) -> float:
        """Of the time that tuning may take."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is tuned, and what the user has settled already."""

    load: LoadSettings
    """With the first of the drafts."""
    engine: EngineSettings
    drafts: tuple[Path, ...]
    usual_threads: int
    settled: frozenset[str] = frozenset()
    """Names of settings that are not to be changed."""

    @property
    def usual(self) -> Choice:
        """What runs without tuning."""
        return Choice(
            draft=self.load.draft,
            threads=self.load.threads or self.usual_threads,
            threads_draft=self.load.threads_draft,
            draft_max=self.engine.draft_max,
            overlap=self.engine.overlap,
            lookup=self.engine.lookup,
        )


@dataclass(slots=True)
class Trial:
    """A choice that was confirmed, or not, by short runs."""

    choice: Choice
    predicted: Prediction
    rates: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def tokens_per_s(self) -> float:
        return median(self.rates) if self.rates else 0.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found."""

    wanted: Wanted
    plan: MemoryPlan
    """Of the chosen settings."""
    speeds: Speeds
    reads: tuple[ReadSpeed, ...]
    replays: tuple[tuple[Path, int, Replayed], ...]
    """By draft and its threads."""
    first: Written
    """The default's first run."""
    trials: tuple[Trial, ...]
    """The default's first."""
    chosen: Choice
    noise: float
    """How far runs of the same settings lay apart, as a share."""
    n_considered: int
    notes: tuple[str, ...] = ()

    @property
    def is_usual(self) -> bool:
        return self.chosen == self.wanted.usual

    @property
    def best(self) -> Trial:
        return next(trial for trial in self.trials if trial.choice == self.chosen)

    @property
    def gain(self) -> float:
        """Over the default, as a share: the median of ratios of runs in the same turn."""
        return gain_of(self.best, self.trials[0])


Say = Callable[[str], None]


def tune(lab: Lab, wanted: Wanted, say: Say = lambda _: None) -> Tuned:
    """Measure, search, confirm. Raises what planning and loading raise."""
    usual = wanted.usual
    usual_plan = the_plan(lab, usual.load(wanted.load), usual.engine)
    reads = tuple(lab.read_speeds()) if usual_plan.paged else ()
    say("a run with the defaults")
    first = lab.write(usual.load(wanted.load), usual.engine, WRITTEN_TOKENS, PASS_SIZES)
    raw_bytes_per_s = reads[0].bytes_per_s if reads else inf
    speeds = Speeds(
        disk_bytes_per_s=disk_rate(first.passes, raw_bytes_per_s),
        compute={usual.threads: compute_places(first.passes)},
    )
    replays = list(_replays(lab, wanted, first.texts, say))
    yields = {(draft, threads): done.trees for draft, threads, done in replays}
    speeds = calibrated(usual, replace(speeds, yields=yields), first)
    speeds = _with_other_threads(lab, wanted, usual_plan, speeds, say)
    notes: list[str] = []
    choices = list(dict.fromkeys([usual, *candidates(wanted, speeds)]))
    plans = _plans(lab, wanted, choices)
    ranked = sorted(
        _predictions(choices, plans, speeds, usual_plan, notes),
        key=lambda found: -found[1].tokens_per_s,
    )
    expected = predict(usual, usual_plan, speeds)
    promising = [
        Trial(choice, prediction)
        for choice, prediction in ranked
        if choice != usual and prediction.tokens_per_s > WORTH_A_RUN * expected.tokens_per_s
    ]
    trials = [Trial(usual, expected), *_unlike(promising)]
    _confirm(lab, wanted, trials, say)
    noise = _noise(trials[0])
    chosen = _winner(trials, noise)
    return Tuned(
        wanted=wanted,
        plan=plans.get(_memory_of(chosen)) or usual_plan,
        speeds=speeds,
        reads=reads,
        replays=tuple(replays),
        first=first,
        trials=tuple(trials),
        chosen=chosen,
        noise=noise,
        n_considered=len(ranked),
        notes=tuple(dict.fromkeys(notes)),
    )


def candidates(wanted: Wanted, speeds: Speeds) -> Iterable[Choice]:
    """Every choice that what was measured can say something of. None changes the text."""
    usual, settled = wanted.usual, wanted.settled
    threads = [usual.threads] if "threads" in settled else list(speeds.compute)
    maxima = {usual.draft_max} if "draft_max" in settled else {usual.draft_max, *DRAFT_MAXIMA}
    overlaps = {usual.overlap} if "no_overlap" in settled else {True, False}
    for target_threads in threads:
        for (draft, draft_threads), n, overlap in product(speeds.yields, sorted(maxima), overlaps):
            if "threads_draft" in settled and draft_threads != (usual.threads_draft or 0):
                continue
            own = None if draft_threads == target_threads else draft_threads
            choice = Choice(draft, target_threads, own, n, overlap, usual.lookup)
            yield choice
        if not (settled & {"draft", "draft_max"}) or usual.draft is None:
            yield Choice(None, target_threads, None, usual.draft_max, usual.overlap, usual.lookup)


def the_plan(lab: Lab, load: LoadSettings, engine: EngineSettings) -> MemoryPlan:
    """Raises BudgetError."""
    (found,) = lab.plans([(load, engine)])
    if isinstance(found, Refused):
        raise BudgetError(found.message, found.smallest_bytes)
    return found


_Memory = tuple[Path | None, int]


def _memory_of(choice: Choice) -> _Memory:
    """What of a choice decides who gets which bytes."""
    return choice.draft, choice.draft_max


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
    return "no draft" if choice.draft is None else f"{choice.draft.name} with {choice.draft_max}"


def _unlike(trials: Sequence[Trial]) -> list[Trial]:
    """The best ones that do not all try the same: each differs from those before it in more than
    the size of a tree that is not reached."""
    found: list[Trial] = []
    for trial in trials:
        said = (trial.choice.draft, trial.choice.threads, trial.choice.threads_draft)
        alike = [
            other
            for other in found
            if (other.choice.draft, other.choice.threads, other.choice.threads_draft) == said
        ]
        if len(alike) < 1 and len(found) < N_FINALISTS:
            found.append(trial)
    return found


def _replays(
    lab: Lab, wanted: Wanted, texts: tuple[Text, ...], say: Say
) -> Iterable[tuple[Path, int, Replayed]]:
    """Each draft with the default's threads, the first one with others too."""
    usual = wanted.usual
    threads = usual.threads_draft or usual.threads
    for draft in wanted.drafts:
        say(f"what {draft.name} guesses")
        yield draft, threads, lab.replay(draft_alone(wanted.load, draft, threads), texts)
        if {"threads", "threads_draft"} & wanted.settled or draft != usual.draft:
            continue
        for fewer in _fewer(threads):
            if lab.left_s > 0:
                yield draft, fewer, lab.replay(draft_alone(wanted.load, draft, fewer), texts)


def _fewer(threads: int) -> list[int]:
    return sorted({n for n in (threads // 2, 1) if 1 <= n < threads}, reverse=True)


def _with_other_threads(
    lab: Lab, wanted: Wanted, plan: MemoryPlan, speeds: Speeds, say: Say
) -> Speeds:
    """Computing with fewer threads, where reads do not hide it anyway."""
    usual = wanted.usual
    expected = predict(usual, plan, speeds)
    if "threads" in wanted.settled or expected.compute_s < READ_BOUND * expected.read_s:
        return speeds
    compute = dict(speeds.compute)
    alone = replace(usual, draft=None, threads_draft=None)
    for threads in _fewer(usual.threads)[:1]:
        if lab.left_s <= 0:
            break
        say(f"passes with {threads} threads")
        load = replace(alone, threads=threads).load(wanted.load)
        engine = replace(alone.engine, lookup=True)
        timed = lab.write(load, engine, 1, PASS_SIZES)
        compute[threads] = compute_places(timed.passes)
    return replace(speeds, compute=compute)


def _confirm(lab: Lab, wanted: Wanted, trials: Sequence[Trial], say: Say) -> None:
    """Short runs of every trial in turn, as many turns as there is time for."""
    if len(trials) == 1:
        say("nothing is predicted to beat the defaults")
    for turn in range(MOST_TURNS if len(trials) > 1 else LEAST_TURNS):
        if turn >= LEAST_TURNS and lab.left_s <= 0:
            return
        # the one that came last comes first in the next turn: what drifts hits all alike
        for trial in trials if turn % 2 == 0 else trials[::-1]:
            say(f"run {turn + 1} of {_says(trial.choice)}")
            run = partial(lab.write, trial.choice.load(wanted.load), trial.choice.engine)
            written = run(WRITTEN_TOKENS)
            trial.rates.append(written.tokens_per_s)
            trial.peak_bytes = max(trial.peak_bytes, written.peak_bytes)


def gain_of(trial: Trial, usual: Trial) -> float:
    """Paired: the runs of one turn lie next to each other in time."""
    ratios = [rate / other for rate, other in zip(trial.rates, usual.rates, strict=True) if other]
    return median(ratios) - 1 if ratios else 0.0


def _noise(trial: Trial) -> float:
    rates = trial.rates
    return (max(rates) - min(rates)) / median(rates) if rates and median(rates) > 0 else 0.0


def _winner(trials: Sequence[Trial], noise: float) -> Choice:
    """The fastest; the default unless it was beaten by more than the noise, in every turn."""
    usual, *others = trials
    winner, best_gain = usual, max(noise, LEAST_GAIN)
    for trial in others:
        gain = gain_of(trial, usual)
        always = all(a > b for a, b in zip(trial.rates, usual.rates, strict=True))
        if gain > best_gain and always:
            winner, best_gain = trial, gain
    return winner.choice
