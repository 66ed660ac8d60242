"""Successive halving (Jamieson and Talwalkar, arXiv 1502.07943): tries all candidates in turns and
drops the slower half after each turn.

Trials are run by a `TrialRunner`, which tests replace by a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from edgespec.errors import EdgespecError
from edgespec.settings.units import format_size
from edgespec.tuning.candidates import Candidate, TuningJob, candidates
from edgespec.tuning.trial import TrialFigures

MIN_GAIN = 0.03
"""A smaller gain counts as noise."""
NOISE_FACTOR = 1.5
"""A gain must exceed the median deviation of its ratios by this factor."""
MIN_TURNS, MAX_STEPS = 2, 6
FIRST_SHARE = 0.2
"""Share of the time for the first run of the defaults, which sets the length of all others."""
FIRST_TOKENS, MIN_TOKENS = 48, 8
"""Tokens of each text in the first run, and at least in later ones."""
SHORT_RUN_S = 1.0

Say = Callable[[str], None]


class TrialRunner(Protocol):
    """Runs trials and keeps the time limit."""

    def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
        """Figures of one trial. Raises the errors of loading and decoding."""

    @property
    def left_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class TrialLength:
    """Limits of a trial: number of prompts, tokens per text, and seconds."""

    n_texts: int | None
    n_tokens: int
    seconds: float


@dataclass(slots=True)
class Trials:
    """A candidate and its runs, one per turn."""

    candidate: Candidate
    runs: list[TrialFigures] = field(default_factory=list)
    failure: str = ""
    """Reason why it was dropped, other than speed."""

    @property
    def rates(self) -> list[float]:
        return [run.tokens_per_s for run in self.runs]

    @property
    def tokens_per_s(self) -> float:
        return median(self.rates) if self.runs else 0.0

    @property
    def peak_bytes(self) -> int:
        return max((run.peak_bytes for run in self.runs), default=0)

    def ratios(self, defaults: Trials) -> list[float]:
        """Speed relative to the defaults' run in the same turn."""
        pairs = zip(self.rates, defaults.rates, strict=False)
        return [rate / other for rate, other in pairs if other]

    def gain(self, defaults: Trials) -> float:
        """Median of `ratios` minus one."""
        ratios = self.ratios(defaults)
        return median(ratios) - 1 if ratios else 0.0

    def noise(self, defaults: Trials) -> float:
        """Median absolute deviation of `ratios`."""
        ratios = self.ratios(defaults)
        return median(abs(ratio - median(ratios)) for ratio in ratios) if ratios else 0.0


@dataclass(frozen=True, slots=True)
class TuningResult:
    """All trials and the winner."""

    job: TuningJob
    trials: tuple[Trials, ...]
    """Trials of all candidates, the defaults first; those without runs were not reached in time."""
    winner: Trials

    @property
    def defaults(self) -> Trials:
        return self.trials[0]

    @property
    def is_default(self) -> bool:
        return self.winner is self.defaults

    @property
    def gain(self) -> float:
        return self.winner.gain(self.defaults)

    @property
    def noise(self) -> float:
        return max((one.noise(self.defaults) for one in self.trials), default=0.0)

    @property
    def others(self) -> float:
        """Largest share of the cores that other processes used during a run."""
        return max((run.others for one in self.trials for run in one.runs), default=0.0)


def tune(
    runner: TrialRunner, job: TuningJob, budget_bytes: int, say: Say = lambda _: None
) -> TuningResult:
    """Find the fastest candidate. Raises the errors of the defaults' first run."""
    all_trials = [Trials(candidate) for candidate in candidates(job)]
    defaults, total_s = all_trials[0], runner.left_s
    say("a run with the defaults")
    first = runner.run(
        job, defaults.candidate, TrialLength(None, FIRST_TOKENS, FIRST_SHARE * total_s)
    )
    run_s = max((total_s - runner.left_s), SHORT_RUN_S)
    n_tokens = max(MIN_TOKENS, first.n_tokens // max(1, first.n_texts))
    length = TrialLength(first.n_texts, n_tokens, 2 * run_s)
    defaults.runs.append(first)
    # half of the remaining time is for the first turn: each later one has half as many candidates
    n_affordable = max(1, len(job.other_drafts), int(0.5 * runner.left_s / run_s))
    remaining = all_trials[1 : 1 + n_affordable]
    _take_turn(runner, job, remaining, length, budget_bytes, say)
    remaining = _faster_half(remaining, defaults)
    if len(remaining) > 1 and all(one.gain(defaults) > 0 for one in remaining[:2]):
        best, second = remaining[:2]
        both = best.candidate.combined(second.candidate, job.defaults)
        if all(both != one.candidate for one in all_trials):
            all_trials.append(Trials(both))
            remaining = [*remaining, all_trials[-1]]
    for turn in range(1, MAX_STEPS):
        if not remaining or (turn >= MIN_TURNS and runner.left_s < (1 + len(remaining)) * run_s):
            break
        ahead = [defaults, *remaining]
        _take_turn(runner, job, ahead if turn % 2 else ahead[::-1], length, budget_bytes, say)
        if turn >= MIN_TURNS:
            remaining = _faster_half(remaining, defaults)
    return TuningResult(job, tuple(all_trials), _winner(all_trials))


def _take_turn(
    runner: TrialRunner,
    job: TuningJob,
    remaining: Sequence[Trials],
    length: TrialLength,
    budget_bytes: int,
    say: Say,
) -> None:
    """Run one trial of each candidate; one that fails or exceeds the budget gets a `failure`.

    When time is over, only other drafts and candidates with earlier runs are tried.
    """
    for one in remaining:
        is_due = one.runs or one.candidate in job.other_drafts or runner.left_s > 0
        if one.failure or not is_due:
            continue
        say(f"run {len(one.runs) + 1} of {label(one.candidate, job.defaults)}")
        try:
            run = runner.run(job, one.candidate, length)
        except EdgespecError as error:
            one.failure = str(error)
            continue
        one.runs.append(run)
        if run.peak_bytes > budget_bytes:
            one.failure = (
                f"its peak of {format_size(run.peak_bytes)} is above the budget of "
                f"{format_size(budget_bytes)}"
            )


def _faster_half(remaining: Sequence[Trials], defaults: Trials) -> list[Trials]:
    """The faster half, fastest first, without candidates slower than the defaults."""
    left = [one for one in remaining if one.runs and not one.failure and one.gain(defaults) > 0]
    left.sort(key=lambda one: -one.gain(defaults))
    return left[: max(1, -(-len(remaining) // 2))]


def _winner(trials: Sequence[Trials]) -> Trials:
    """The candidate with the largest gain above the noise, otherwise the defaults."""
    defaults, *others = trials
    best, best_gain = defaults, 0.0
    for one in others:
        if one.failure or len(one.ratios(defaults)) < MIN_TURNS:
            continue
        least = max(NOISE_FACTOR * one.noise(defaults), MIN_GAIN)
        if (gain := one.gain(defaults)) > max(least, best_gain):
            best, best_gain = one, gain
    return best


def label(candidate: Candidate, defaults: Candidate) -> str:
    """The settings that differ from the defaults, as command-line flags."""
    flags = {"threads": "-t", "threads_draft": "-td", "draft_max": "--draft-max", "draft": "-md"}
    given = []
    for name, value in candidate.settings(defaults).items():
        flag = flags.get(name, "--" + name.replace("_", "-"))
        if value is True:
            given.append(flag)
        elif value is False:
            given.append("--no-" + flag.removeprefix("--no-").removeprefix("--"))
        else:
            given.append(f"{flag} {getattr(value, 'name', value)}")
    return " ".join(given) or "defaults"
